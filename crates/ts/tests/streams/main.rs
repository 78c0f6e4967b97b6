//! The analyser and the teletext decoder on real streams: healthy, damaged, changed, and arbitrary bytes.

mod damage;
mod fuzz_analyse;
mod peers;
mod support;
mod teletext;
mod times;
