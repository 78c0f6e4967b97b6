//! ISA-L's erasure code, if the machine has it: the reference for measurements of the parity code.
//!
//! The library is opened while the program runs (Debian: libisal2), so nothing needs it to be built or started.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};

const LIBRARY: &CStr = c"libisal.so.2";

type InitTables = unsafe extern "C" fn(c_int, c_int, *mut c_uchar, *mut c_uchar);
type EncodeData =
    unsafe extern "C" fn(c_int, c_int, c_int, *mut c_uchar, *mut *mut c_uchar, *mut *mut c_uchar);
type InvertMatrix = unsafe extern "C" fn(*mut c_uchar, *mut c_uchar, c_int) -> c_int;

/// The functions of the library that are used here.
#[derive(Clone, Copy, Debug)]
pub struct Isal {
    init: InitTables,
    encode: EncodeData,
    invert: InvertMatrix,
}

/// Sums of products of blocks, with tables of ISA-L's own.
#[derive(Clone, Debug)]
pub struct IsalCode {
    isal: Isal,
    sources: usize,
    outputs: usize,
    tables: Vec<u8>,
}

impl Isal {
    /// Opens the library; `None` if it is not installed or lacks a function.
    pub fn open() -> Option<Self> {
        // SAFETY: the name ends with a zero byte. The actions of the library when it is loaded are
        // the responsibility of the machine's owner, as with every shared library; it is never
        // closed, so its functions stay.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let (init, encode) = (symbol(library, c"ec_init_tables")?, symbol(library, c"ec_encode_data")?);
        let invert = symbol(library, c"gf_invert_matrix")?;
        // SAFETY: these are the functions of erasure_code.h of these names, with these arguments since ISA-L 2.0.
        unsafe {
            Some(Self {
                init: std::mem::transmute::<*mut c_void, InitTables>(init),
                encode: std::mem::transmute::<*mut c_void, EncodeData>(encode),
                invert: std::mem::transmute::<*mut c_void, InvertMatrix>(invert),
            })
        }
    }

    /// Tables for `coefficients`, one row of `sources` for each output.
    ///
    /// # Panics
    /// If the coefficients do not fill whole rows, or there are none.
    pub fn code(self, sources: usize, coefficients: &[u8]) -> IsalCode {
        assert!(sources > 0 && !coefficients.is_empty() && coefficients.len().is_multiple_of(sources));
        let outputs = coefficients.len() / sources;
        let (mut rows, mut tables) = (coefficients.to_vec(), vec![0; 32 * coefficients.len()]);
        // SAFETY: as many coefficients as the two counts say, and 32 bytes of tables for each.
        unsafe {
            (self.init)(sources as c_int, outputs as c_int, rows.as_mut_ptr(), tables.as_mut_ptr());
        }
        IsalCode { isal: self, sources, outputs, tables }
    }

    /// Inverse of a matrix of `n` rows of `n`; `None` if it has none.
    ///
    /// # Panics
    /// If the matrix does not have this size.
    pub fn invert(self, matrix: &[u8], n: usize) -> Option<Vec<u8>> {
        assert_eq!(matrix.len(), n * n);
        let (mut matrix, mut inverse) = (matrix.to_vec(), vec![0; n * n]);
        // SAFETY: both have n * n bytes.
        let failed = unsafe { (self.invert)(matrix.as_mut_ptr(), inverse.as_mut_ptr(), n as c_int) };
        (failed == 0).then_some(inverse)
    }
}

impl IsalCode {
    /// `outputs[o] = sum over i of coefficient[o][i] * sources[i]`.
    ///
    /// # Panics
    /// If there are not as many blocks as the tables were made for, or they differ in length.
    pub fn run(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        const MOST: usize = 256;
        assert!(sources.len() == self.sources && outputs.len() == self.outputs && self.sources <= MOST);
        let bytes = sources[0].len();
        assert!(sources.iter().all(|s| s.len() == bytes) && outputs.iter().all(|o| o.len() == bytes));
        let (mut from, mut to) = ([std::ptr::null_mut(); MOST], [std::ptr::null_mut(); MOST]);
        from.iter_mut().zip(sources).for_each(|(pointer, s)| *pointer = s.as_ptr().cast_mut());
        to.iter_mut().zip(outputs).for_each(|(pointer, o)| *pointer = o.as_mut_ptr());
        // SAFETY: as many pointers as the tables were made for, each to `bytes` bytes; sources and tables are only read,
        // although the C prototype does not say so.
        unsafe {
            (self.isal.encode)(
                bytes as c_int,
                self.sources as c_int,
                self.outputs as c_int,
                self.tables.as_ptr().cast_mut(),
                from.as_mut_ptr(),
                to.as_mut_ptr(),
            );
        }
    }
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    let name: *const c_char = name.as_ptr();
    // SAFETY: a library that is open, and a name that ends with a zero byte.
    let address = unsafe { libc::dlsym(library, name) };
    (!address.is_null()).then_some(address)
}

#[cfg(test)]
mod tests {
    use millrace_core::fec::Code;

    use super::*;

    #[test]
    fn isal_encode_and_invert_match_own_code() {
        let Some(isal) = Isal::open() else {
            println!("skipped: no libisal.so.2 (apt-get install libisal2)");
            return;
        };
        let code = Code::new(3, 2).unwrap();
        let rows: Vec<u8> =
            (0..2).flat_map(|p| (0..3).map(move |j| (p, j))).map(|(p, j)| code.coefficient(p, j)).collect();
        let data = [[1_u8; 100], [2; 100], [0xfe; 100]];
        let data = data.each_ref().map(|block| &block[..]);
        let (mut ours, mut theirs) = ([[0; 100]; 2], [[0; 100]; 2]);
        code.encode(&data, &mut ours.each_mut().map(|block| &mut block[..]));
        isal.code(3, &rows).run(&data, &mut theirs.each_mut().map(|block| &mut block[..]));
        assert_eq!(ours, theirs);
        assert_eq!(isal.invert(&[2, 0, 0, 1], 2), Some(vec![0x8e, 0, 0, 1]));
        assert_eq!(isal.invert(&[1, 1, 1, 1], 2), None);
    }
}
