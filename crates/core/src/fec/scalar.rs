//! A byte at a time by tables of half bytes: for processors without anything better, for the ends of blocks, and as the one that
//! the others must agree with.

use super::field::NIBBLES;
use super::kernel::Pass;

pub(super) fn run(pass: Pass<'_, '_, '_>) {
    for (number, output) in pass.outputs.iter_mut().enumerate() {
        let output = &mut output[pass.range.clone()];
        if !pass.adds {
            output.fill(0);
        }
        for (column, source) in pass.columns.iter().zip(pass.sources) {
            let source = &source[pass.range.clone()];
            match column.coefficients[number] {
                1 => output.iter_mut().zip(source).for_each(|(to, from)| *to ^= from),
                c => add_product(output, source, &NIBBLES[usize::from(c)]),
            }
        }
    }
}

fn add_product(output: &mut [u8], source: &[u8], table: &[u8; 32]) {
    for (to, from) in output.iter_mut().zip(source) {
        *to ^= table[usize::from(from & 15)] ^ table[16 + usize::from(from >> 4)];
    }
}
