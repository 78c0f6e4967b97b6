//! The data in flight, its lost part, and the reaction to the loss.

pub(crate) mod board;
pub(crate) mod frto;
pub(crate) mod marks;
pub(crate) mod prr;
pub(crate) mod rack;
pub mod records;
pub(crate) mod tlp;
pub(crate) mod undo;
