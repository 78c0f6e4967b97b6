//! HTTP for browsers and operators: titles as files and as HLS, the page, the API, metrics.
//!
//! It knows the service and no engine: what it needs of the server is the trait [`Site`]. Its connections have threads of their own, so
//! whatever clients do there costs RTSP nothing. A media request leaves them: the connection goes with its [`Order`] to the service, an
//! engine sends the bytes from the extents that all viewers share, and the connection comes back.
//!
//! ```text
//!   accept ─► head of a request ─┬─ media ─► Order { connection, bytes a..b } ─► Site::send ─► service, engine
//!                 ▲              │                                                   │
//!                 └──────────────┼──────────────── Delivery { connection } ◄─────────┘
//!                                └─ everything else ─► hyper, axum: page, playlists, API, metrics
//! ```
#![forbid(unsafe_code)]

pub mod site;

pub use site::{Delivery, Order, OrderSocket, Refused, Site, SiteError};
