//! The example module in Rust does what its text form does. It is built where the compiler has its target.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use millrace_store::transform::wasm::{WasmModule, WasmTransform};
use millrace_store::transform::{PacketBlock, Transform};
use millrace_testkit::mux;

const TARGET: &str = "wasm32-unknown-unknown";

fn blanked(module: &[u8]) -> Vec<u8> {
    let module = WasmTransform::new(Arc::new(WasmModule::new(module).unwrap()));
    let mut stream = mux::usual_film();
    for (block, first) in stream.chunks_mut(196 * 1316).zip((0..).step_by(196)) {
        module.apply(&mut PacketBlock::of_bytes(first, 1316, block)).unwrap();
    }
    stream
}

#[test]
fn wasm_example_in_rust_matches_its_text_version() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed =
        Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output().unwrap();
    let libdir = String::from_utf8(printed.stdout).unwrap();
    if !Path::new(libdir.trim()).is_dir() {
        return eprintln!("skipped: the compiler has no target {TARGET}; rustup target add {TARGET}");
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/wasm-blank-pid");
    let dir = tempfile::tempdir().unwrap();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--offline", "--target", TARGET, "--target-dir"])
        .arg(dir.path())
        .arg("--manifest-path")
        .arg(example.join("Cargo.toml"))
        .env_remove("RUSTFLAGS")
        .status();
    assert!(built.unwrap().success());
    let module = dir.path().join(TARGET).join("release/wasm_blank_pid.wasm");
    let text = std::fs::read_to_string(example.join("blank_pid.wat")).unwrap();
    let expected = blanked(&wat::parse_str(&text).unwrap());
    assert!(expected != mux::usual_film());
    assert!(blanked(&std::fs::read(module).unwrap()) == expected);
}
