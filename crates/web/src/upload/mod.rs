//! Uploads: `PUT /titles/NAME` makes a title of a film. A transport stream is written as it
//! arrives; other containers are spooled and converted.
//!
//! ```text
//!   connection ─► hyper ─► body ─► pace ─► room for a MiB ─► thread "upload": Site::take_in ─► ingest ─► volume
//!                            ▲                                     │
//!                            └────── nothing is read while there is no room, so the client waits
//! ```
//!
//! An upload outlives the connection that began it: its thread waits for another one to go on, for a time. Whatever ends it before its last byte, nothing
//! of it stays in the volume.
//!
//! | file | is about |
//! | --- | --- |
//! | `asked` | properties of the bytes that a request brings |
//! | `table` | uploads in progress, and their holders |
//! | `take` | the bytes of one request |
//! | `pace` | how fast they may come, and how slowly |
//! | `incoming` | the same bytes, as ingest reads them |

mod asked;
mod incoming;
mod pace;
mod table;
mod take;

pub(crate) use self::pace::Stall;
pub(crate) use self::table::{Listed, Upload, Uploads, list, state};
pub(crate) use self::take::{let_go, take};

use crate::answer::Answer;
use crate::request::{Method, Request};
use crate::route::{self, RouteMatch};

/// Whether a title can be uploaded at this address: as itself, and by the name of its file, which programs put behind an address that ends in a slash.
pub(crate) fn is_taken_at(found: &RouteMatch) -> bool {
    found.route.methods().contains(&Method::Put)
}

/// The answer to a PUT without a route. The last part of such a path is usually a file name, which
/// curl appends after the slash.
pub(crate) fn no_address(path: &str) -> Answer {
    let name = path.strip_prefix("/titles/").filter(|name| !name.contains('/'));
    let refused = name.and_then(|name| asked::check_name(&route::decoded(name).unwrap_or_default()).err());
    refused.unwrap_or_else(|| Answer::error(404, "nothing has this address"))
}

/// The address of an upload, if a request is one.
pub(crate) fn asked_for(request: &Request) -> Option<RouteMatch> {
    let found = if request.method == Method::Put { route::find(&request.path) } else { None };
    found.filter(is_taken_at)
}
