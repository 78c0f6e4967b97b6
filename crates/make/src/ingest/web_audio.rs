//! Whether titles get audio that browsers play.

/// Whether AAC is made beside audio that browsers do not play (AC-3, DTS, MP2 and others).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebAudio {
    /// Where a container is converted anyway; MPEG-TS is stored byte for byte.
    #[default]
    Auto,
    /// In MPEG-TS too; ffmpeg converts it if its audio requires that.
    Always,
    /// Nowhere.
    Never,
}
