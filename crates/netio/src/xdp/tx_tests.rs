//! Devices over rings in memory.
