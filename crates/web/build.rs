//! Embeds hls.js in the program, from where `scripts/npm.sh page` has put it. Without it everything
//! still builds, and the page reports that it is missing.

use std::path::Path;
use std::{env, fs, io};

/// Where the script puts it, from this crate's folder.
const PACKED: &str = "../../target/npm/hls.js.gz";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PACKED}");
    let packed = Path::new(PACKED);
    if !packed.exists()
        && let Some(folder) = packed.parent()
    {
        // If the file were missing, cargo would rebuild the crate each time. If it cannot be
        // created, that is the only cost.
        let _ = fs::create_dir_all(folder).and_then(|()| fs::write(packed, b""));
    }
    let bytes = fs::read(packed).unwrap_or_default();
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    fs::write(Path::new(&out).join("hls.js.gz"), bytes)
}
