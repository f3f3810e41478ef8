//! Templates: definitions in NBIRTH, instances of them in births and data.
//!
//! A definition is named by the metric that holds it; an instance names its definition in `template_ref`. A
//! birth's instance is complete, a data message's may hold only the members that changed and is merged with the
//! last known ones.

use std::sync::Arc;

use crate::datatype::DataType;
use crate::metric::{Metric, MetricFlags};
use crate::value::Value;

/// A template definition or instance.
// tck-id-payloads-template-is-definition
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Template {
    /// Version text, if given.
    pub version: Option<Arc<str>>,
    /// Name of the definition; absent in a definition.
    pub template_ref: Option<Arc<str>>,
    /// Definition or instance.
    pub is_definition: bool,
    /// Parameters; an instance's override its definition's defaults.
    pub parameters: Vec<Parameter>,
    /// Members.
    pub metrics: Vec<Metric>,
}

/// A template parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name.
    // tck-id-payloads-template-parameter-name-required
    pub name: Arc<str>,
    /// Its type, a basic one.
    // tck-id-payloads-template-parameter-type-value
    pub datatype: DataType,
    /// Its value; [`Value::Null`] when there is none.
    pub value: Value,
}

impl Template {
    /// The member of that name.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|it| &*it.name == name)
    }

    /// The parameter of that name.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|it| &*it.name == name)
    }

    /// `self`, completed from `known`: members and parameters that `self` leaves out keep their known value.
    /// Members that were not sent carry [`MetricFlags::UNCHANGED`].
    // tck-id-payloads-template-instance-members-data, tck-id-payloads-template-instance-parameters
    #[must_use]
    pub fn merged_with(&self, known: &Self) -> Self {
        let mut merged = self.clone();
        if merged.version.is_none() {
            merged.version.clone_from(&known.version);
        }
        if merged.template_ref.is_none() {
            merged.template_ref.clone_from(&known.template_ref);
        }
        for old in &known.parameters {
            if self.parameter(&old.name).is_none() {
                merged.parameters.push(old.clone());
            }
        }
        let mut metrics = Vec::with_capacity(known.metrics.len().max(self.metrics.len()));
        for old in &known.metrics {
            let mut sent = self
                .metrics
                .iter()
                .filter(|it| it.name == old.name)
                .peekable();
            if sent.peek().is_none() {
                let mut kept = old.clone();
                kept.flags.insert(MetricFlags::UNCHANGED);
                metrics.push(kept);
            }
            for new in sent {
                let mut new = new.clone();
                if let (Value::Template(part), Value::Template(whole)) = (&new.value, &old.value) {
                    new.value = Value::Template(Arc::new(part.merged_with(whole)));
                }
                metrics.push(new);
            }
        }
        for new in &self.metrics {
            if known.member(&new.name).is_none() {
                metrics.push(new.clone());
            }
        }
        merged.metrics = metrics;
        merged
    }

    /// Calls `each` with the full name and the metric of every member that is no template itself, depth first.
    /// `name` is the name of the metric that holds this template; levels are joined by `/`.
    pub fn flatten(&self, name: &str, each: &mut dyn FnMut(&str, &Metric)) {
        for member in &self.metrics {
            let path = format!("{name}/{}", member.name);
            match &member.value {
                Value::Template(inner) => inner.flatten(&path, each),
                _ => each(&path, member),
            }
        }
    }
}
