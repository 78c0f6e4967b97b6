//! The stack in virtual time: with itself, with smoltcp, with scripts, and with hostile or arbitrary input.

mod checked;
mod fuzz_ip;
mod fuzz_wire;
mod hostile;
mod ip_smoltcp;
mod mtu;
mod packetdrill;
mod sim;
mod simulation;
mod stack;
mod states;
