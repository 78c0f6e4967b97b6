//! Stripes of a title from the results of reads, also where data is missing or wrong.
//!
//! | file | holds |
//! | --- | --- |
//! | `results` | the data received, unit by unit |
//! | `records` | the records and CRCs from the data received |
//! | `decoder` | stripes with missing or wrong data, codeword by codeword |

pub(super) mod decoder;
pub(super) mod records;
pub(super) mod results;
