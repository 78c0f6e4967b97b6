//! The code beside others of the same matrix: rusty_erasure, and ISA-L where it is installed.

use std::io::Write;
use std::process::{Command, Stdio};

use millrace_core::fec::{Code, field};
use millrace_core::random::SplitMix;
use rusty_erasure::{Coder, Matrix};

const SHAPES: [(usize, usize); 8] = [(1, 1), (4, 1), (4, 2), (4, 4), (8, 2), (10, 4), (20, 8), (64, 8)];
const BYTES: usize = 1316;

fn data(k: usize) -> Vec<Vec<u8>> {
    let mut random = SplitMix(k as u64);
    (0..k).map(|_| (0..BYTES).map(|_| random.next() as u8).collect()).collect()
}

fn slices(blocks: &[Vec<u8>]) -> Vec<&[u8]> {
    blocks.iter().map(|block| &block[..]).collect()
}

fn slices_mut(blocks: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    blocks.iter_mut().map(|block| &mut block[..]).collect()
}

fn our_parity(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0; BYTES]; code.m()];
    code.encode(&slices(data), &mut slices_mut(&mut parity));
    parity
}

/// Our coefficients as a generator: the identity, then the parities.
fn our_generator(code: &Code) -> Vec<u8> {
    let identity = (0..code.k()).flat_map(|row| (0..code.k()).map(move |column| u8::from(row == column)));
    let parities = (0..code.m()).flat_map(|p| (0..code.k()).map(move |j| code.coefficient(p, j)));
    identity.chain(parities).collect()
}

#[test]
fn rusty_erasure_has_the_same_matrix_but_for_the_scale_of_columns() {
    for (k, m) in SHAPES {
        let (code, cauchy) = (Code::new(k, m).unwrap(), Matrix::cauchy(k, m).unwrap());
        for p in 0..m {
            for j in 0..k {
                let entry = |row: usize| cauchy.get(k + row, j).unwrap();
                assert_eq!(
                    field::mul(code.coefficient(p, j), entry(0)),
                    entry(p),
                    "{k}+{m} row {p} column {j}"
                );
            }
        }
    }
}

#[test]
fn rusty_erasure_encodes_the_same_and_restores_what_we_encoded() {
    for (k, m) in SHAPES {
        let code = Code::new(k, m).unwrap();
        let matrix = Matrix::from_bytes(k + m, k, our_generator(&code)).unwrap();
        let theirs = Coder::new(matrix).unwrap();
        let (data, mut parity) = (data(k), vec![vec![0; BYTES]; m]);
        theirs.encode(&slices(&data), &mut slices_mut(&mut parity)).unwrap();
        let ours = our_parity(&code, &data);
        assert_eq!(ours, parity, "{k}+{m}");
        // The first data symbols are lost, as many as there are parities.
        let lost: Vec<usize> = (0..m.min(k)).collect();
        let symbols: Vec<Option<&[u8]>> = data
            .iter()
            .chain(&ours)
            .enumerate()
            .map(|(s, block)| (!lost.contains(&s)).then_some(&block[..]))
            .collect();
        let mut restored = vec![vec![0; BYTES]; lost.len()];
        theirs.recover(&symbols, &lost, &mut slices_mut(&mut restored)).unwrap();
        assert_eq!(restored, data[..lost.len()], "{k}+{m}");
    }
}

#[test]
fn isa_l_has_the_same_matrix_and_encodes_the_same() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/isal.py");
    let child = Command::new("python3").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        println!("skipped: python3 cannot be started");
        return;
    };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines = SHAPES.map(|(k, m)| format!("{k} {m} {BYTES} {}\n", hex(&data(k).concat())));
    // A script that has found no library does not read: its output is looked at below.
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(lines.concat().as_bytes()));
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    if output.status.code() == Some(77) {
        println!("skipped: {} (apt-get install libisal2)", text.trim());
        return;
    }
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    assert_eq!(text.lines().count(), SHAPES.len());
    for ((k, m), line) in SHAPES.into_iter().zip(text.lines()) {
        let code = Code::new(k, m).unwrap();
        let parity = our_parity(&code, &data(k)).concat();
        let expected = format!("{} {}", hex(&our_generator(&code)[k * k..]), hex(&parity));
        assert_eq!(line, expected, "{k}+{m}");
    }
}
