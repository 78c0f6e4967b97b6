//! A WebAssembly module of the operator's that changes blocks. `docs/ref/transform-modules.md`
//! describes its required exports.
//!
//! ```text
//!   module: memory, alloc(len) -> ptr, transform(ptr, len, first) -> len        import: millrace.log(ptr, len)
//!
//!   block ── copied to ptr ──► a new instance ── len returned ──► copied back
//!                                   └── anything else: the block stays as it was
//! ```
//!
//! Each block gets a new instance, so that nothing remains of the blocks before it. The resources
//! of an instance are bounded: work by fuel, which is counted by instructions and not by a clock,
//! memory and tables by their sizes, calls by their depth. It has no clock, no random numbers, no
//! files; it can log lines of text. A block's result depends on the block alone.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::text::excerpt;
use wasmi::{
    Caller, CompilationMode, Config, EnforcedLimits, Engine, ExternType, Instance, Linker, Memory, Module,
    Store, StoreLimits, StoreLimitsBuilder, TrapCode, ValType,
};

use super::block::{Applied, PacketBlock, Transform, TransformError};
use crate::limits::transform::{
    MAX_WASM_LINE_BYTES, MAX_WASM_LINES, MAX_WASM_MEMORY_BYTES, MAX_WASM_MODULE_BYTES, MAX_WASM_RECURSION,
    MAX_WASM_STACK_BYTES, MAX_WASM_TABLE_ELEMENTS, WASM_FUEL, WASM_LOG_FUEL,
};

/// Names of a module's imports and exports.
const IMPORT: (&str, &str) = ("millrace", "log");
const MEMORY: &str = "memory";
const ALLOC: &str = "alloc";
const TRANSFORM: &str = "transform";
/// The first bytes of a module in its binary form.
const MAGIC: &[u8] = b"\0asm";

/// Why a module is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// Its file cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, #[source] std::io::Error),
    /// It is longer than a module may be.
    #[error("the module is longer than {MAX_WASM_MODULE_BYTES} bytes")]
    TooLong,
    /// It is something else.
    #[error("not a binary WebAssembly module; convert its text with wat2wasm first")]
    NotBinary,
    /// It is not valid, or asks for more than it may have.
    #[error("the module is refused: {0}")]
    Refused(String),
    /// It wants something from outside.
    #[error("the module imports {0}; it may import the function millrace.log (i32, i32) and nothing else")]
    Import(String),
    /// It lacks something.
    #[error("the module has to export {0}")]
    Export(&'static str),
}

/// A module, compiled.
pub struct WasmModule {
    engine: Engine,
    module: Module,
    linker: Linker<Guest>,
    /// Lines that it has logged and that have not been taken.
    said: Arc<Mutex<VecDeque<String>>>,
}

impl std::fmt::Debug for WasmModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WasmModule").finish_non_exhaustive()
    }
}

/// The state kept beside an instance.
struct Guest {
    limits: StoreLimits,
    said: Arc<Mutex<VecDeque<String>>>,
    /// Lines that it may still say.
    lines: usize,
}

impl WasmModule {
    /// From a file.
    ///
    /// # Errors
    /// [`ModuleError`]
    pub fn read(path: &Path) -> Result<Self, ModuleError> {
        let failed = |error| ModuleError::Read(path.to_path_buf(), error);
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(failed)?;
        file.take(MAX_WASM_MODULE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        Self::new(&bytes)
    }

    /// From its binary form. It is instantiated once, to see that it can be.
    ///
    /// # Errors
    /// [`ModuleError`]
    pub fn new(bytes: &[u8]) -> Result<Self, ModuleError> {
        if bytes.len() as u64 > MAX_WASM_MODULE_BYTES {
            return Err(ModuleError::TooLong);
        }
        if !bytes.starts_with(MAGIC) {
            return Err(ModuleError::NotBinary);
        }
        // A case that the interpreter does not foresee is the module's fault, and must not end the
        // server.
        let loaded = catch_unwind(|| Self::load(bytes));
        loaded.unwrap_or_else(|_| Err(ModuleError::Refused("the interpreter has failed at it".into())))
    }

    fn load(bytes: &[u8]) -> Result<Self, ModuleError> {
        let refused = |error: wasmi::Error| ModuleError::Refused(excerpt(&error.to_string(), 200));
        let engine = Engine::new(&config());
        let module = Module::new(&engine, bytes).map_err(refused)?;
        for import in module.imports() {
            let is_log = matches!(import.ty(), ExternType::Func(kind)
                if kind.params() == [ValType::I32, ValType::I32] && kind.results().is_empty());
            if (import.module(), import.name()) != IMPORT || !is_log {
                let named = format!("{}.{}", import.module(), import.name());
                return Err(ModuleError::Import(excerpt(&named, 100)));
            }
        }
        let mut linker = Linker::new(&engine);
        linker.func_wrap(IMPORT.0, IMPORT.1, log).map_err(|error| refused(error.into()))?;
        let this = Self { engine, module, linker, said: Arc::default() };
        let (store, instance) = this.instance().map_err(refused)?;
        let func = |name, params: &[ValType]| {
            let kind = instance.get_func(&store, name)?.ty(&store);
            (kind.params() == params && kind.results() == [ValType::I32]).then_some(())
        };
        instance.get_memory(&store, MEMORY).ok_or(ModuleError::Export("a memory named memory"))?;
        func(ALLOC, &[ValType::I32]).ok_or(ModuleError::Export("the function alloc (i32) -> i32"))?;
        func(TRANSFORM, &[ValType::I32, ValType::I32, ValType::I64])
            .ok_or(ModuleError::Export("the function transform (i32, i32, i64) -> i32"))?;
        Ok(this)
    }

    /// Returns the oldest line that it has logged and that has not been taken.
    pub fn take_line(&self) -> Option<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn instance(&self) -> Result<(Store<Guest>, Instance), wasmi::Error> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(MAX_WASM_MEMORY_BYTES)
            .table_elements(MAX_WASM_TABLE_ELEMENTS)
            .instances(1)
            .tables(1)
            .memories(1)
            .build();
        let guest = Guest { limits, said: Arc::clone(&self.said), lines: MAX_WASM_LINES };
        let mut store = Store::new(&self.engine, guest);
        store.limiter(|guest| &mut guest.limits);
        store.set_fuel(WASM_FUEL)?;
        let instance = self.linker.instantiate_and_start(&mut store, &self.module)?;
        Ok((store, instance))
    }

    /// Has a new instance change the block.
    fn run(&self, block: &mut PacketBlock<'_>) -> Result<(), TransformError> {
        let failed = |error: wasmi::Error| failure(&error);
        let length = block.payload_bytes();
        let (mut store, instance) = self.instance().map_err(failed)?;
        // That these are there was seen when the module was loaded.
        let internal = || TransformError::Internal("an export is missing".into());
        let memory = instance.get_memory(&store, MEMORY).ok_or_else(internal)?;
        let alloc = instance.get_typed_func::<i32, i32>(&store, ALLOC).map_err(failed)?;
        let transform = instance.get_typed_func::<(i32, i32, i64), i32>(&store, TRANSFORM).map_err(failed)?;
        // An extent has fewer bytes than fit.
        let place = alloc.call(&mut store, length as i32).map_err(failed)?;
        block.copy_to(room(memory, &mut store, place, length)?);
        let arguments = (place, length as i32, block.first_ts().cast_signed());
        let got = transform.call(&mut store, arguments).map_err(failed)?;
        if usize::try_from(got) != Ok(length) {
            return Err(TransformError::WrongLength { got: got.into(), want: length });
        }
        block.copy_from(room(memory, &mut store, place, length)?);
        Ok(())
    }
}

/// `length` bytes of a module's memory.
fn room(
    memory: Memory,
    store: &mut Store<Guest>,
    place: i32,
    length: usize,
) -> Result<&mut [u8], TransformError> {
    let start = place.cast_unsigned() as usize;
    let bytes = memory.data_mut(store).get_mut(start..start.saturating_add(length));
    bytes.ok_or(TransformError::OutOfBounds(length, start as i64))
}

fn config() -> Config {
    let mut config = Config::default();
    config
        .consume_fuel(true)
        .set_max_recursion_depth(MAX_WASM_RECURSION)
        .set_max_stack_height(MAX_WASM_STACK_BYTES)
        .compilation_mode(CompilationMode::Eager)
        .enforced_limits(EnforcedLimits::strict())
        .ignore_custom_sections(true)
        .allow_start_fn(false)
        .wasm_multi_memory(false)
        .wasm_tail_call(false);
    config
}

fn failure(error: &wasmi::Error) -> TransformError {
    match error.as_trap_code() {
        Some(TrapCode::OutOfFuel) => TransformError::OutOfFuel(WASM_FUEL),
        _ => TransformError::Trap(excerpt(&error.to_string(), 200)),
    }
}

/// `millrace.log`: a line of text. It costs fuel; excess lines and excess length are cut off.
fn log(mut caller: Caller<'_, Guest>, place: i32, length: i32) -> Result<(), wasmi::Error> {
    let rest = caller.get_fuel()?.checked_sub(WASM_LOG_FUEL);
    caller.set_fuel(rest.ok_or(TrapCode::OutOfFuel)?)?;
    let Some(lines) = caller.data().lines.checked_sub(1) else { return Ok(()) };
    let memory = caller.get_export(MEMORY).and_then(wasmi::Extern::into_memory);
    let (start, length) = (place.cast_unsigned() as usize, length.cast_unsigned() as usize);
    let bytes = memory.and_then(|memory| memory.data(&caller).get(start..start.saturating_add(length)));
    let bytes = bytes.ok_or(TrapCode::MemoryOutOfBounds)?;
    let text = String::from_utf8_lossy(&bytes[..length.min(MAX_WASM_LINE_BYTES)]);
    let line = excerpt(&text, MAX_WASM_LINE_BYTES);
    caller.data_mut().lines = lines;
    let mut said = caller.data().said.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < MAX_WASM_LINES {
        said.push_back(line);
    }
    Ok(())
}

/// A module as a step of a transformation.
pub struct WasmTransform {
    module: Arc<WasmModule>,
}

impl WasmTransform {
    /// Of this module.
    pub fn new(module: Arc<WasmModule>) -> Self {
        Self { module }
    }
}

impl Transform for WasmTransform {
    fn apply(&self, block: &mut PacketBlock<'_>) -> Result<Applied, TransformError> {
        self.module.run(block).map(|()| Applied::default())
    }
    fn may_fail(&self) -> bool {
        true
    }
    fn is_slow(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[path = "wasm_tests.rs"]
mod tests;
