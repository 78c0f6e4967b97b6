//! All coders that can compute the parity of a row or its missing parts.

use anyhow::Context;
use millrace_core::fec::{Code, Kernel};

use crate::isal::Isal;

/// Computes the outputs from the sources, all of one length.
type CoderFn = Box<dyn FnMut(&[&[u8]], &mut [&mut [u8]])>;

/// One of them.
pub(super) struct Coder {
    pub(super) name: String,
    /// Whether it is our code: then its outputs are compared with the expected ones.
    pub(super) is_same_code: bool,
    /// How many outputs it makes.
    pub(super) outputs: usize,
    pub(super) run: CoderFn,
}

pub(super) const XOR: &str = "plain XOR";
pub(super) const ISAL: &str = "ISA-L";

/// Name of our code by one kernel.
pub(super) fn ours(kernel: Kernel) -> String {
    format!("ours, {kernel:?}").to_lowercase()
}

/// The kernels that are worth a contest: all but the scalar one, unless there is no other.
fn kernels() -> Vec<Kernel> {
    let vector: Vec<Kernel> = Kernel::available().filter(|kernel| *kernel != Kernel::Scalar).collect();
    if vector.is_empty() { vec![Kernel::Scalar] } else { vector }
}

/// The XOR of `sources` blocks by the best kernel: what any code of one parity must cost at least.
fn plain_xor(sources: usize) -> anyhow::Result<Coder> {
    let code = Code::new(sources, 1).context("too many blocks")?;
    Ok(Coder {
        name: XOR.into(),
        is_same_code: false,
        outputs: 1,
        run: Box::new(move |sources, out| code.encode(sources, out)),
    })
}

/// Those who compute `m` parities of `k` blocks. The first is the plain XOR.
pub(super) fn encoders(k: usize, m: usize, isal: Option<Isal>) -> anyhow::Result<Vec<Coder>> {
    let code = Code::new(k, m).context("no such code")?;
    let mut coders = vec![plain_xor(k)?];
    for kernel in kernels() {
        let code = code.clone();
        let run: CoderFn = Box::new(move |data, out| code.encode_with(kernel, data, out));
        coders.push(Coder { name: ours(kernel), is_same_code: true, outputs: m, run });
    }
    if let Some(isal) = isal {
        let theirs = isal.code(k, &generator(&code)[k * k..]);
        let run: CoderFn = Box::new(move |data, out| theirs.run(data, out));
        coders.push(Coder { name: ISAL.into(), is_same_code: true, outputs: m, run });
    }
    #[cfg(feature = "reed-solomon-crates")]
    coders.extend(crates::encoders(k, m, &generator(&code))?);
    Ok(coders)
}

/// Those who restore the first `lost` data blocks of a row from `sources` (numbers of symbols, in the order of
/// `Plan::sources`). The first is the plain XOR of as many blocks.
pub(super) fn decoders(code: &Code, lost: usize, isal: Option<Isal>) -> anyhow::Result<Vec<Coder>> {
    let k = code.k();
    let plan = code.plan(u128::MAX << lost).context("too much is lost")?;
    let sources = plan.sources().to_vec();
    let mut coders = vec![plain_xor(k)?];
    for kernel in kernels() {
        let plan = plan.clone();
        let run: CoderFn = Box::new(move |sources, out| plan.restore_with(kernel, sources, out));
        coders.push(Coder { name: ours(kernel), is_same_code: true, outputs: lost, run });
    }
    let generator = generator(code);
    if let Some(isal) = isal {
        let rows: Vec<u8> = sources.iter().flat_map(|s| generator[s * k..][..k].to_vec()).collect();
        let inverse = isal.invert(&rows, k).context("ISA-L finds no inverse")?;
        let theirs = isal.code(k, &inverse[..lost * k]);
        let run: CoderFn = Box::new(move |sources, out| theirs.run(sources, out));
        coders.push(Coder { name: ISAL.into(), is_same_code: true, outputs: lost, run });
    }
    #[cfg(feature = "reed-solomon-crates")]
    coders.extend(crates::decoders(k, code.m(), &generator, &sources, lost)?);
    Ok(coders)
}

/// The identity, then the coefficients of the parities: one row of k for each symbol.
fn generator(code: &Code) -> Vec<u8> {
    let (k, m) = (code.k(), code.m());
    let identity = (0..k).flat_map(|row| (0..k).map(move |column| u8::from(row == column)));
    identity.chain((0..m).flat_map(|p| (0..k).map(move |j| code.coefficient(p, j)))).collect()
}

/// Codes of other crates. They are no part of the program unless it is built with this feature.
#[cfg(feature = "reed-solomon-crates")]
mod crates {
    use anyhow::Context;
    use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
    use rusty_erasure::Matrix;

    use super::{Coder, CoderFn};

    const RUSTY: &str = "rusty_erasure";
    const SIMD: &str = "reed-solomon-simd";

    pub(super) fn encoders(k: usize, m: usize, generator: &[u8]) -> anyhow::Result<Vec<Coder>> {
        let rusty = rusty_erasure::coder(Matrix::from_bytes(k + m, k, generator.to_vec()).context(RUSTY)?);
        let rusty = rusty.context(RUSTY)?;
        let run_rusty: CoderFn =
            Box::new(move |data, out| rusty.encode(data, out).expect("blocks of one length"));
        let mut simd: Option<ReedSolomonEncoder> = None;
        let run_simd: CoderFn = Box::new(move |data, out| {
            let bytes = data[0].len();
            let encoder =
                simd.get_or_insert_with(|| ReedSolomonEncoder::new(k, m, bytes).expect("an even length"));
            data.iter().for_each(|block| encoder.add_original_shard(block).expect("k blocks"));
            let result = encoder.encode().expect("k blocks");
            out.iter_mut().zip(result.recovery_iter()).for_each(|(to, from)| to.copy_from_slice(from));
        });
        Ok(vec![
            Coder { name: RUSTY.into(), is_same_code: true, outputs: m, run: run_rusty },
            Coder { name: SIMD.into(), is_same_code: false, outputs: m, run: run_simd },
        ])
    }

    pub(super) fn decoders(
        k: usize,
        m: usize,
        generator: &[u8],
        sources: &[usize],
        lost: usize,
    ) -> anyhow::Result<Vec<Coder>> {
        let matrix = Matrix::from_bytes(k + m, k, generator.to_vec()).context(RUSTY)?;
        let rusty = rusty_erasure::coder(matrix).context(RUSTY)?;
        let present: Vec<bool> = (0..k + m).map(|s| s >= lost).collect();
        let rebuild: Vec<usize> = (0..lost).collect();
        let plan = rusty.decode_plan(&present, &rebuild).context(RUSTY)?;
        let sources = sources.to_vec();
        let run_rusty: CoderFn = Box::new(move |blocks, out| {
            let mut symbols = vec![None; k + m];
            sources.iter().zip(blocks).for_each(|(s, block)| symbols[*s] = Some(*block));
            rusty.recover_with(&plan, &symbols, out).expect("enough symbols");
        });
        // A code of its own: it is given parities that are not its own, which costs the same and restores nothing.
        let mut simd: Option<ReedSolomonDecoder> = None;
        let run_simd: CoderFn = Box::new(move |blocks, out| {
            let bytes = blocks[0].len();
            let decoder =
                simd.get_or_insert_with(|| ReedSolomonDecoder::new(k, m, bytes).expect("an even length"));
            for (at, block) in blocks.iter().enumerate() {
                match at.checked_sub(k - lost) {
                    None => decoder.add_original_shard(at + lost, block).expect("a symbol of its own"),
                    Some(parity) => decoder.add_recovery_shard(parity, block).expect("a parity of its own"),
                }
            }
            let result = decoder.decode().expect("enough symbols");
            let restored = result.restored_original_iter();
            out.iter_mut().zip(restored).for_each(|(to, (_, from))| to.copy_from_slice(from));
        });
        Ok(vec![
            Coder { name: RUSTY.into(), is_same_code: true, outputs: lost, run: run_rusty },
            Coder { name: SIMD.into(), is_same_code: false, outputs: lost, run: run_simd },
        ])
    }
}
