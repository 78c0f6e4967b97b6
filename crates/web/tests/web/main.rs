//! The web side over real sockets, in front of a site that is made up.

mod carried;
mod changes;
mod client;
mod cmaf;
mod connections;
mod events;
mod fetched;
mod floods;
mod guide;
mod h2;
mod hls;
mod liars;
mod live_parts;
mod media;
mod offered;
mod openapi;
mod pages;
mod pictures;
mod proxied;
mod reload;
mod rights;
mod site;
mod subtitles;
mod tls;
mod uploads;
