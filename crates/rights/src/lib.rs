//! Access rights: users, passwords, tokens and signed links, and the one decision about them
//! (`docs/design/0039-rights.md`).
//!
//! It knows no protocol, and titles only by name. A protocol front end makes an [`AccessRequest`] of a
//! request, and the [`Gate`] decides on it.
//!
//! | module | is about |
//! | --- | --- |
//! | `decide` | the decision |
//! | `gate` | the credentials of a request, and whether they are right |
//! | `advice` | the additional answer of an operator's program |
//! | `known` | users, tokens and keys in memory |
//! | `file`, `format`, `list` | the same on disk, and in listings |
//! | `copies` | the copies on the members of a volume |
//! | `watch` | the thread that checks passwords and follows the file |
//! | `credentials`, `digest`, `link` | the credentials that a client can present |
//! | `secret` | passwords and tokens |
//! | `checked`, `throttle` | the memory of earlier clients |
//! | `name` | names of users, patterns of titles |
//! | `clock` | the time |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | users and rights | `docs/design/0039-rights.md`, `crates/rights/src/decide.rs`, then `gate.rs`; in the faces `web/src/access.rs`, `server/src/session/rights.rs` |
#![forbid(unsafe_code)]

mod advice;
mod checked;
mod clock;
mod copies;
mod credentials;
mod decide;
mod digest;
mod error;
mod file;
mod format;
mod gate;
mod known;
pub mod limits;
mod link;
mod list;
mod name;
mod secret;
mod throttle;
mod watch;

pub use advice::{Advice, Advised, Adviser, Answered, Question};
pub use clock::Now;
pub use copies::{Copies, RIGHTS_FILE, RIGHTS_RECORD_FILE};
pub use decide::{
    Decision, Policy, Reason, RequestOrigin, RequestedAction, TrustHere, Watching, Who, decide,
};
pub use error::FileError;
pub use file::{NewUser, RightsFile};
pub use gate::{AccessRequest, AccessVerdict, Check, DigestOf, Gate, RightsCounters, Visitor};
pub use known::{Ha1, Keys, Limits, Quota, RightsSnapshot, Token, User};
pub use link::SignedLink;
pub use list::{ListedGroup, ListedToken, ListedUser};
pub use name::{NameError, base, check_name, check_pattern, fits};
pub use secret::{Cost, SecretError, check_password};
pub use watch::StartError;
