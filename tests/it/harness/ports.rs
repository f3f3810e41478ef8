//! Ports of servers that must be known before the server runs, and the same after it was killed.

use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

/// Tried in turn, but for [`ephemeral`] ones.
const TRIED: RangeInclusive<u16> = 10_000..=65_000;
/// Fewer are not enough for all stories.
const LEAST: usize = 2_000;

/// A port on loopback that nobody listens on, and that is this caller's for as long as this process lives.
///
/// It is none of the kernel's ephemeral range: a client's socket, of whatever test, would else be given it while its
/// server is down. Other test processes see that it is taken by the UDP socket of the same number.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<(usize, Vec<UdpSocket>)> = Mutex::new((0, Vec::new()));
    let ephemeral = ephemeral();
    let mut ports: Vec<u16> = TRIED.filter(|port| !ephemeral.contains(port)).collect();
    if ports.len() < LEAST {
        // The kernel takes nearly everything; one of its own is better than none.
        ports = TRIED.collect();
    }
    // Each process begins elsewhere, so that they seldom meet.
    let first = std::process::id() as usize * 257;
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..ports.len() {
        let port = ports[(first + taken.0) % ports.len()];
        taken.0 += 1;
        let Ok(hold) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else {
            continue;
        };
        // Asked and not bound: a child of another test that is being started would hold a copy of the socket.
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            taken.1.push(hold);
            return port;
        }
    }
    panic!("no port is free");
}

/// What the kernel gives to sockets that ask for none.
fn ephemeral() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let text = text.unwrap_or_default();
    let mut bounds = text.split_whitespace().map_while(|word| word.parse().ok());
    match (bounds.next(), bounds.next()) {
        (Some(low), Some(high)) => low..=high,
        _ => 32_768..=65_535,
    }
}
