//! Titles to an object store and back, with a server of others and with faults between it and us.

mod s3_server;

mod faults;
mod fuzz;
mod resume;
mod round_trip;
