//! Loads, listeners and the drop probe against servers and senders that do exactly known things, in real time.

mod drop_probe;
mod http_server;
mod load;
mod load_fec;
mod load_listen;
mod load_web;
