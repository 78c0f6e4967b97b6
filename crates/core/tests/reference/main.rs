//! Codes and parsers of this crate beside implementations that share nothing with them.

mod fec_reference;
