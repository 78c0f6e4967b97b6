//! No bytes that are offered as a WebAssembly module do harm: they are refused, or the module runs within its bounds and gives the same for
//! the same block each time, or it fails and the block stays as it was.
//!
//! Seeds are texts, here and in `examples`.

use millrace_store::transform::wasm::{WasmModule, WasmTransform};
use millrace_store::transform::{PacketBlock, Transform};

const BLANK_PID: &str = include_str!("../../../../examples/wasm-blank-pid/blank_pid.wat");

/// Everything that a module may have, and some that it may not.
const MANY: &str = r#"(module
  (import "millrace" "log" (func $log (param i32 i32)))
  (type $unary (func (param i32) (result i32)))
  (memory (export "memory") 8 60)
  (table 4 8 funcref)
  (global $calls (mut i32) (i32.const 3))
  (func $twice (type $unary) (i32.mul (local.get 0) (i32.const 2)))
  (func $down (type $unary)
    (if (result i32) (i32.eqz (local.get 0)) (then (i32.const 0))
      (else (call $down (i32.sub (local.get 0) (i32.const 1))))))
  (elem (i32.const 0) $twice $down)
  (data (i32.const 8) "a line of text")
  (func (export "alloc") (param i32) (result i32)
    (drop (memory.grow (i32.const 1)))
    (i32.const 2048))
  (func (export "transform") (param i32 i32 i64) (result i32)
    (call $log (i32.const 8) (i32.const 14))
    (global.set $calls (call_indirect (type $unary) (i32.const 5) (i32.const 1)))
    (memory.copy (local.get 0) (i32.add (local.get 0) (i32.const 188)) (i32.const 188))
    (f32.store (local.get 0) (f32.div (f32.const 0) (f32.const 0)))
    (i64.store offset=376 (local.get 0) (i64.rotl (local.get 2) (i64.const 9)))
    (local.get 1)))"#;

fn run(module: &WasmTransform, block: &[u8]) -> Option<Vec<u8>> {
    let mut out = block.to_vec();
    let done = module.apply(&mut PacketBlock::of_bytes(3, 1316, &mut out));
    assert!(done.is_ok() || out == block, "a block that has failed is as it was");
    done.ok().map(|_| out)
}

/// Loads and runs bytes that may be a module; returns whether they could be loaded.
fn try_module(bytes: &[u8]) -> bool {
    let Ok(module) = WasmModule::new(bytes) else { return false };
    let module = WasmTransform::new(module.into());
    let block: Vec<u8> = (0..7 * 1316).map(|at| (at % 251) as u8).collect();
    assert!(run(&module, &block) == run(&module, &block), "the same block, another result");
    true
}

fn seeds() -> [(&'static str, Vec<u8>); 2] {
    [("blank-pid", wat::parse_str(BLANK_PID).unwrap()), ("many", wat::parse_str(MANY).unwrap())]
}

#[test]
fn fuzz_wasm_module() {
    bolero::check!(name = "wasm_module").with_max_len(2000).for_each(|bytes: &[u8]| {
        // Input that is no module from its first bytes on is refused because of them.
        try_module(&[b"\0asm\x01\0\0\0", bytes].concat());
    });
}

#[test]
fn fuzz_wasm_damage() {
    let seeds = seeds();
    let input = bolero::produce::<(u8, Vec<(u16, u8)>, Option<u16>)>();
    bolero::check!(name = "wasm_damage").with_generator(input).with_iterations(500).for_each(
        |(which, flips, end)| {
            let mut bytes = seeds[usize::from(*which) % seeds.len()].1.clone();
            let length = bytes.len();
            flips.iter().take(4).for_each(|(at, value)| bytes[usize::from(*at) % length] = *value);
            if let Some(end) = end.filter(|end| end % 5 == 0) {
                bytes.truncate(usize::from(end) % length);
            }
            try_module(&bytes);
        },
    );
}

#[test]
fn seeds_are_modules() {
    for (name, bytes) in seeds() {
        assert!(try_module(&bytes), "{name}");
    }
}
