//! Puts hls.js into the program, where `scripts/npm.sh page` has brought it. Without it everything builds all the same, and the page says what it lacks.

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
        // A file that is not there would have cargo build the crate anew each time. If it cannot be made, that is all that it costs.
        let _ = fs::create_dir_all(folder).and_then(|()| fs::write(packed, b""));
    }
    let bytes = fs::read(packed).unwrap_or_default();
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    fs::write(Path::new(&out).join("hls.js.gz"), bytes)
}
