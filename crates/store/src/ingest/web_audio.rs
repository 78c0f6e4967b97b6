//! Whether titles get audio that browsers play.

/// Whether AAC is made beside audio that browsers do not play (AC-3, DTS, MP2 and others).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WebAudio {
    /// Where a container is converted anyway; MPEG-TS is stored byte for byte.
    #[default]
    Auto,
    /// In MPEG-TS too, which is then converted by ffmpeg where its audio needs that.
    Always,
    /// Nowhere.
    Never,
}
