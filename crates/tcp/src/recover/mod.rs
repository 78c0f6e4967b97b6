//! What is in flight, what of it is lost, and what to do about it.

pub(crate) mod board;
pub(crate) mod frto;
pub(crate) mod marks;
pub(crate) mod prr;
pub(crate) mod rack;
pub mod records;
pub(crate) mod tlp;
pub(crate) mod undo;
