//! Arbitrary and mutated responses against everything in the client that reads them.

mod fuzz;
