//! Players against servers and senders that do exactly known things, in real time.

mod analyse;
mod play;
mod play_fec;
mod play_nvod;
mod st2022;
