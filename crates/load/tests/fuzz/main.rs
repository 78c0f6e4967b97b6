//! Arbitrary and mutated responses against everything in the load generator that reads them.

mod fuzz_web;
