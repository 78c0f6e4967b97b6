//! Changes the display name and the source files in a title's manifest. Data and name stay.

use millrace_core::ids::TitleId;

use super::resize;
use super::state::Volume;
use crate::error::StoreError;
use crate::format::title_info::SourceIdentity;
use crate::limits::MAX_SOURCE_COPIES;
use crate::naming::title_text;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TitleEdit {
    /// It has this display name.
    Title(String),
    /// Its source is this file now: it was moved, renamed, or has another modification time. `blake3` is that of its content.
    Source {
        /// The file.
        source: SourceIdentity,
        /// Its content.
        blake3: String,
    },
    /// This file has the same content.
    Copy(SourceIdentity),
    /// A copy that a server fetched for its viewers stays.
    Keep,
}

impl Volume {
    /// Changes the manifest of a title, on each member in one step; a crash leaves the old or the new manifest.
    ///
    /// # Errors
    /// If the display name is empty, there is no such title, or the store cannot be written to.
    pub fn edit_title(&self, id: TitleId, edit: TitleEdit) -> Result<(), StoreError> {
        let edit = match edit {
            TitleEdit::Title(text) => match title_text(&text) {
                title if title.is_empty() => {
                    let what = "a display name needs at least one character that can be seen".to_owned();
                    return Err(StoreError::BadTitle { id, what });
                }
                title => TitleEdit::Title(title),
            },
            edit => edit,
        };
        resize::change(&self.inner, id, "changing a title", |manifest| {
            let info = &mut manifest.title;
            match edit {
                TitleEdit::Title(title) => info.title = Some(title),
                TitleEdit::Source { source, blake3 } => {
                    info.origin.copies.retain(|copy| copy.path != source.path);
                    // A title without a display name is called as its file was.
                    info.title = Some(info.display_name());
                    info.origin.blake3 = (info.source.bytes != info.bytes).then_some(blake3);
                    info.source = source;
                }
                TitleEdit::Keep => info.origin.cached = None,
                TitleEdit::Copy(copy) => {
                    let copies = &mut info.origin.copies;
                    copies.retain(|other| other.path != copy.path);
                    copies.push(copy);
                    let surplus = copies.len().saturating_sub(MAX_SOURCE_COPIES);
                    copies.drain(..surplus);
                }
            }
            Ok(Vec::new())
        })
    }
}
