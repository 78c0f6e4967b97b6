//! The engine in virtual time: no test here waits, and every datagram of every test is checked against the title.

mod ahead;
mod bytes;
mod crowd;
mod growing;
mod lent;
mod life;
mod ops;
mod pacing;
mod queued;
mod reports;
mod shared;
mod spare;
mod steps;
mod trouble;
mod world;
