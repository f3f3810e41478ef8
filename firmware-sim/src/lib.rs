//! A fleet of conforming Sparkplug edge nodes, with faults on request.
