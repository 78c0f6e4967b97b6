//! Netlink: queries Linux about interfaces, routes and neighbours, and receives its notifications
//! of changes.
//!
//! | file | holds |
//! | --- | --- |
//! | `message` | messages and their attributes: writing, reading with checked bounds |
//! | `socket` | one netlink socket: questions with their answers, dumps, groups |

mod message;
mod socket;

#[cfg(test)]
pub(crate) use message::Messages;
pub(crate) use message::{Attributes, NetlinkMessage, NetlinkRequest, bytes_of, u32_of};
pub(crate) use socket::{Family, Netlink};
