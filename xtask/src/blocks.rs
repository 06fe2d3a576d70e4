//! Generated blocks in files that are written by hand.
//!
//! Responsible for finding a block by its marks. These are comments of the file's language: `NAME: made by `make
//! generate`` and `end of NAME`. Not responsible for the contents (`options`).
//!
//! Invariant: text outside of the marks stays as it is.

use eyre::{Result, WrapErr as _, bail, ensure};

const BEGIN: &str = ": made by `make generate`";

/// Returns the text with new blocks. `make` gets the name of a block and the indentation of its mark. It returns the
/// text between the marks, or `None` to keep the block.
pub fn filled(text: &str, make: impl Fn(&str, usize) -> Result<Option<String>>) -> Result<String> {
    let mut made = String::new();
    let mut lines = text.split_inclusive('\n');
    let mut blocks = 0;
    while let Some(line) = lines.next() {
        made += line;
        let mark = line.trim_start();
        let Some((name, _)) = mark.split_once(BEGIN) else { continue };
        let name = name.trim_start_matches(|c: char| !c.is_alphanumeric());
        let block = make(name, line.len() - mark.len()).wrap_err_with(|| format!("block \"{name}\""))?;
        let end = format!("end of {name}");
        let mut now = String::new();
        let last = lines.by_ref().find(|line| {
            let is_end = line.contains(&end);
            if !is_end {
                now += line;
            }
            is_end
        });
        let Some(last) = last else { bail!("block \"{name}\" does not end") };
        made += &block.unwrap_or(now);
        made += last;
        blocks += 1;
    }
    ensure!(blocks > 0, "there is no block in it");
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a\n  // x: made by `make generate`\n  old\n  // end of x\nb\n";

    #[test]
    fn a_block_is_made_anew() {
        let make = |name: &str, indent: usize| Ok(Some(format!("{:indent$}{name}{indent}\n", "")));
        let made = filled(TEXT, make).unwrap();
        assert_eq!(made, "a\n  // x: made by `make generate`\n  x2\n  // end of x\nb\n");
        assert_eq!(filled(&made, make).unwrap(), made);
        assert_eq!(filled(TEXT, |_, _| Ok(None)).unwrap(), TEXT);
    }

    #[test]
    fn a_text_without_a_complete_block_is_an_error() {
        let make = |_: &str, _| Ok(None);
        assert!(filled("a\n", make).is_err());
        assert!(filled(&TEXT.replace("end of x", "end of y"), make).is_err());
        assert!(filled(TEXT, |_, _| bail!("no")).is_err());
    }
}
