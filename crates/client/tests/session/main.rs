//! Players, loads and listeners against servers and senders that do exactly known things, in real time.

mod analyse;
mod http_server;
mod load;
mod load_listen;
mod load_web;
mod play;
mod play_fec;
mod st2022;
mod support;
