//! The pictures that are kept of a title: a poster, and a sheet of small ones for seeking. They are no part of
//! the title, and may be lost.

mod files;
mod title_pictures;

pub use self::files::PictureFiles;
pub use self::title_pictures::{About, Pictures, RULE, TILE};
