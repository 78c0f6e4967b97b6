//! Arbitrary and mutated bytes against the readers of media formats.

mod fuzz_subtitles;
