use super::super::select::NULL_PACKET;
use super::super::{Derivation, StreamTables, Transforms};
use super::*;
use millrace_media::ts_packet::TsPacket;
use millrace_testkit::mux::usual_film;

const BLANK_PID: &str = include_str!("../../../../examples/wasm-blank-pid/blank_pid.wat");

/// A module with the exports that one has, around `body` of its transform; `more` stands beside them.
fn with(more: &str, body: &str) -> String {
    format!(
        "(module {more} (memory (export \"memory\") 8) (func (export \"alloc\") (param i32) (result i32) i32.const 1024) \
         (func (export \"transform\") (param i32 i32 i64) (result i32) {body}))"
    )
}

fn load(text: &str) -> Result<WasmModule, ModuleError> {
    WasmModule::new(&wat::parse_str(text).unwrap())
}

/// Returns the changed block, or why it stays as it is.
fn run(module: &WasmModule, first: u32, block: &[u8]) -> Result<Vec<u8>, TransformError> {
    let mut out = block.to_vec();
    let done = module.run(&mut PacketBlock::of_bytes(first, 1316, &mut out));
    if done.is_err() {
        assert!(out == block, "a block that has failed is as it was");
    }
    done.map(|()| out)
}

#[test]
fn wasm_example_blanks_only_its_pid() {
    let (module, before) = (load(BLANK_PID).unwrap(), usual_film());
    let mut blanked = 0;
    for block in before.chunks(196 * 1316) {
        let after = run(&module, 0, block).unwrap();
        for (was, is) in block.as_chunks::<188>().0.iter().zip(after.as_chunks::<188>().0) {
            if TsPacket(was).pid() == 0x101 {
                blanked += 1;
                assert_eq!(*is, NULL_PACKET);
            } else {
                assert_eq!(is, was);
            }
        }
    }
    assert_eq!(blanked, 400, "four of forty packets");
}

/// Writes how often it has been called, and the number of its first packet, into the block's first bytes.
const COUNTS: &str = "(global.set $calls (i32.add (global.get $calls) (i32.const 1))) \
    (i32.store8 (local.get 0) (global.get $calls)) (i64.store offset=1 (local.get 0) (local.get 2)) \
    (i32.store8 offset=9 (local.get 0) (i32.load8_u (i32.const 16))) (i32.store8 (i32.const 16) (i32.const 77)) \
    (local.get 1)";

#[test]
fn wasm_module_keeps_no_state_between_blocks() {
    let module = load(&with("(global $calls (mut i32) (i32.const 0))", COUNTS)).unwrap();
    let block = vec![0; 1316];
    for first in [0, 5, 0, 1000] {
        let mut expected = block.clone();
        expected[0] = 1;
        expected[1..9].copy_from_slice(&(u64::from(first) * 7).to_le_bytes());
        assert!(run(&module, first, &block) == Ok(expected), "neither a global nor memory is kept");
    }
}

#[test]
fn wasm_run_beyond_limits_fails_or_leaves_block_unchanged() {
    let block = usual_film()[..196 * 1316].to_vec();
    let failed = |more: &str, body: &str| run(&load(&with(more, body)).unwrap(), 0, &block).unwrap_err();
    let out_of_fuel = TransformError::OutOfFuel(WASM_FUEL);
    assert_eq!(failed("", "(loop $forever (br $forever)) (unreachable)"), out_of_fuel);
    // Copies of megabytes cost more than one instruction.
    let copies =
        "(loop $on (memory.copy (i32.const 0) (i32.const 100) (i32.const 500000)) (br $on)) (unreachable)";
    assert_eq!(failed("", copies), out_of_fuel);
    assert!(
        matches!(failed("", "(unreachable)"), TransformError::Trap(said) if said.contains("unreachable"))
    );
    let beyond = "(i32.store (i32.const 0x7fffffff) (i32.const 1)) (local.get 1)";
    assert!(matches!(failed("", beyond), TransformError::Trap(_)));
    let divides = "(i32.div_u (local.get 1) (i32.const 0))";
    assert!(matches!(failed("", divides), TransformError::Trap(_)));
    let deep = "(func $deep (param i32) (result i32) (call $deep (local.get 0)))";
    let error = failed(deep, "(call $deep (i32.const 1))");
    assert!(matches!(&error, TransformError::Trap(said) if said.contains("stack")), "{error}");
    for got in [-1, 0, 1315, i32::MAX] {
        let error = failed("", &format!("(i32.const {got})"));
        assert_eq!(error, TransformError::WrongLength { got: got.into(), want: block.len() });
    }
    // Memory that is not there is not given; the module may go on without.
    let grows =
        "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) (local.get 1)";
    let module = load(&with("", grows)).unwrap();
    assert!(run(&module, 0, &block) == Ok(block.clone()));
    let tables = "(loop $more (br_if $more (i32.ne (table.grow (ref.null func) (i32.const 1000)) (i32.const -1)))) (local.get 1)";
    let module = load(&with("(table 1 funcref)", tables)).unwrap();
    assert!(run(&module, 0, &block) == Ok(block.clone()));
}

/// A module that takes nearly all of it can do so for one block after the other.
#[test]
fn wasm_run_gets_full_fuel_for_each_block() {
    let turns = |turns: u64| {
        let body = format!(
            "(local $left i32) (local.set $left (i32.const {turns})) (loop $on \
             (br_if $on (local.tee $left (i32.sub (local.get $left) (i32.const 1))))) (local.get 1)"
        );
        load(&with("", &body)).unwrap()
    };
    let block = vec![0; 1316];
    // The cost of a turn depends on the interpreter: a few units.
    let (mut fits, mut too_many) = (WASM_FUEL / 100, WASM_FUEL);
    assert!(run(&turns(fits), 0, &block).is_ok());
    assert_eq!(run(&turns(too_many), 0, &block), Err(TransformError::OutOfFuel(WASM_FUEL)));
    while fits + fits / 16 < too_many {
        let middle = fits.midpoint(too_many);
        if run(&turns(middle), 0, &block).is_ok() { fits = middle } else { too_many = middle }
    }
    assert!(fits > WASM_FUEL / 10, "{fits} turns are all that fuel allows");
    let most = turns(fits);
    for first in 0..4 {
        assert!(run(&most, first, &block).is_ok(), "block {first}");
    }
}

#[test]
fn wasm_run_with_buffer_out_of_bounds_returns_error() {
    let block = vec![0; 1316];
    for place in ["-1", "0x7fffffff", "524288", "523000"] {
        let text = BLANK_PID.replace("(i32.const 1024))", &format!("(i32.const {place}))"));
        let error = run(&load(&text).unwrap(), 0, &block).unwrap_err();
        assert!(matches!(error, TransformError::OutOfBounds(1316, _)), "{place}: {error}");
    }
    let text = BLANK_PID.replace("(i32.const 1024))", "(i32.const 522972))");
    assert!(run(&load(&text).unwrap(), 0, &block).is_ok(), "the last place at which it fits");
}

#[test]
fn wasm_load_of_disallowed_module_names_reason() {
    let refused = |text: &str| load(text).unwrap_err().to_string();
    let import = |import: &str| refused(&with(import, "(local.get 1)"));
    for (text, name) in [
        ("(import \"env\" \"open\" (func (param i32) (result i32)))", "env.open"),
        ("(import \"wasi_snapshot_preview1\" \"fd_write\" (func))", "wasi_snapshot_preview1.fd_write"),
        ("(import \"millrace\" \"log\" (func (param i32)))", "millrace.log"),
        ("(import \"millrace\" \"log\" (func (param i32 i32) (result i32)))", "millrace.log"),
        ("(import \"millrace\" \"now\" (func (result i64)))", "millrace.now"),
        ("(import \"env\" \"limit\" (global i32))", "env.limit"),
    ] {
        let error = import(text);
        assert!(error.contains(name) && error.contains("nothing else"), "{error}");
    }
    for (export, said) in
        [("memory", "memory"), ("alloc", "alloc (i32) -> i32"), ("transform", "transform (i32, i32, i64)")]
    {
        let error = refused(&BLANK_PID.replace(&format!("\"{export}\""), "\"other\""));
        assert!(error.contains(said), "{error}");
    }
    let error = refused(&BLANK_PID.replace("(param $first i64)", "(param $first i32)"));
    assert!(error.contains("transform (i32, i32, i64)"), "{error}");
    // More than it may have from the beginning on.
    for text in ["(memory (export \"memory\") 8000)", "(memory (export \"memory\") 65)"] {
        let error = refused(&BLANK_PID.replace("(memory (export \"memory\") 8)", text));
        assert!(error.contains("refused"), "{error}");
    }
    let error = refused(&with("(table 100000000 funcref)", "(local.get 1)"));
    assert!(error.contains("refused"), "{error}");
    let error = refused(&with("(func $s) (start $s)", "(local.get 1)"));
    assert!(error.contains("refused"), "{error}");
    assert!(matches!(WasmModule::new(BLANK_PID.as_bytes()), Err(ModuleError::NotBinary)));
    assert!(matches!(WasmModule::new(b"\0asm\x01\0\0\0\x05\x03\xff"), Err(ModuleError::Refused(_))));
    let long = [&wat::parse_str(BLANK_PID).unwrap()[..], &vec![0; MAX_WASM_MODULE_BYTES as usize]].concat();
    assert!(matches!(WasmModule::new(&long), Err(ModuleError::TooLong)));
    let gone = WasmModule::read(Path::new("/nowhere/module.wasm")).unwrap_err().to_string();
    assert!(gone.contains("/nowhere/module.wasm"), "{gone}");
}

const LOG: &str = "(import \"millrace\" \"log\" (func $log (param i32 i32)))";

#[test]
fn lines_are_taken_and_a_flood_of_them_ends() {
    let data = "(data (i32.const 0) \"hello\\n\\1b[2Jworld\")";
    let says = format!("{data} (func (export \"say\"))");
    let module =
        load(&with(&format!("{LOG} {says}"), "(call $log (i32.const 0) (i32.const 15)) (local.get 1)"))
            .unwrap();
    let block = vec![0; 1316];
    (0..20).for_each(|_| assert!(run(&module, 0, &block).is_ok()));
    let lines: Vec<_> = std::iter::from_fn(|| module.take_line()).collect();
    assert_eq!(lines.len(), MAX_WASM_LINES, "what nobody takes is bounded");
    assert!(lines[0].starts_with("hello") && !lines[0].contains(['\n', '\x1b']), "{:?}", lines[0]);
    let flood = "(loop $on (call $log (i32.const 0) (i32.const 500000)) (br $on)) (unreachable)";
    let module = load(&with(LOG, flood)).unwrap();
    assert_eq!(run(&module, 0, &block), Err(TransformError::OutOfFuel(WASM_FUEL)));
    let lines: Vec<_> = std::iter::from_fn(|| module.take_line()).collect();
    assert_eq!(lines.len(), MAX_WASM_LINES);
    assert!(lines.iter().all(|line| line.len() <= 4 * MAX_WASM_LINE_BYTES));
    let beyond = load(&with(LOG, "(call $log (i32.const -1) (i32.const 9)) (local.get 1)")).unwrap();
    assert!(matches!(run(&beyond, 0, &block), Err(TransformError::Trap(_))));
}

#[test]
fn wasm_step_failure_undoes_preceding_steps() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good.wasm", BLANK_PID);
    let bad = file("bad.wasm", &with("", "(unreachable)"));
    let all = Transforms::parse(&[
        format!("good=restamp:offset=1s+wasm:{good}"),
        format!("bad=restamp:offset=1s+wasm:{bad}"),
    ])
    .unwrap();
    let stream = usual_film();
    assert!(!StreamTables::of(&stream).is_empty());
    let apply = |name: &str| {
        let derivation =
            Derivation::bind(all.find(name).unwrap(), millrace_core::ids::TitleId([1; 16]), &stream);
        let derivation = derivation.unwrap();
        assert!(derivation.is_slow());
        let mut out = stream[..196 * 1316].to_vec();
        let done = derivation.apply(&mut PacketBlock::of_bytes(0, 1316, &mut out), &mut Vec::new());
        (done, out == stream[..196 * 1316])
    };
    assert_eq!(apply("good"), (true, false));
    assert_eq!(apply("bad"), (false, true));
    let failure = all.find("bad").unwrap().report().take_failure(millrace_core::time::Instant(0)).unwrap();
    assert!(failure.error.to_string().contains("unreachable"), "{}", failure.error);
    let error = Transforms::parse(&["x=wasm:/nowhere.wasm"]).unwrap_err().to_string();
    assert!(error.contains("/nowhere.wasm"), "{error}");
}
