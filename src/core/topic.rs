//! Finds the bindings of a topic that match a key. Keys and patterns are words with dots between them, as in AMQP 0-9-1
//! (RabbitMQ's topic exchanges). In a pattern `*` stands for one word and `#` for any number of words, also none.
//!
//! Responsible for matching only. Not responsible for what a binding does (`job::publish`), nor for filters.
//!
//! Invariant: a search visits only patterns that share the key's words. Its time grows with the key's words and with
//! the wildcards on their way, not with the number of patterns.

use std::collections::{HashMap, HashSet};

/// The most words that a key or a pattern may have.
pub const MAX_WORDS: usize = 32;
/// The most bytes that a key or a pattern may have.
pub const MAX_BYTES: usize = 1024;

/// What is wrong with a key or a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It has more than [`MAX_BYTES`]. The number is its length in bytes.
    TooLong(usize),
    /// It has more than [`MAX_WORDS`]. The number is its count of words.
    TooManyWords(usize),
    /// A pattern has `*` or `#` within a longer word.
    Wildcard,
}

/// The words of a key or a pattern. The empty text has none.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('.').filter(move |_| !text.is_empty())
}

/// Checks a key.
///
/// # Errors
/// It is too long, or has too many words.
pub fn check_key(key: &str) -> Result<(), Fault> {
    if key.len() > MAX_BYTES {
        return Err(Fault::TooLong(key.len()));
    }
    match words(key).count() {
        count if count > MAX_WORDS => Err(Fault::TooManyWords(count)),
        _ => Ok(()),
    }
}

/// Checks a pattern.
///
/// # Errors
/// As `check_key`, and `*` or `#` is not a whole word.
pub fn check_pattern(pattern: &str) -> Result<(), Fault> {
    check_key(pattern)?;
    let is_mixed = |word: &str| word.len() > 1 && word.contains(['*', '#']);
    if words(pattern).any(is_mixed) { Err(Fault::Wildcard) } else { Ok(()) }
}

/// A tree of patterns. The number of a pattern says to which binding it belongs.
#[derive(Default, Debug)]
pub struct Patterns {
    nodes: Vec<Node>,
    /// Whether a pattern has several `#`, so that several paths may lead to one node.
    is_branching: bool,
}

#[derive(Default, Debug)]
struct Node {
    words: HashMap<Box<str>, u32>,
    /// `one` is the node behind `*`, `any` the node behind `#`. 0: there is no such node, since the root is behind
    /// nothing.
    one: u32,
    any: u32,
    /// The numbers of the patterns that end here.
    here: Vec<u32>,
}

impl Patterns {
    /// Adds a pattern that [`check_pattern`] has passed.
    pub fn add(&mut self, pattern: &str, number: u32) {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let (mut at, mut was_any, mut any) = (0, false, 0);
        for word in words(pattern) {
            // `#.#` means the same as `#`.
            if word == "#" && was_any {
                continue;
            }
            was_any = word == "#";
            any += u32::from(was_any);
            at = self.behind(at, word);
        }
        self.is_branching |= any > 1;
        self.nodes[at].here.push(number);
    }

    fn behind(&mut self, at: usize, word: &str) -> usize {
        let next = self.nodes.len() as u32;
        let node = &mut self.nodes[at];
        let found = match word {
            "*" => &mut node.one,
            "#" => &mut node.any,
            word => node.words.entry(word.into()).or_default(),
        };
        if *found == 0 {
            *found = next;
            self.nodes.push(Node::default());
            return next as usize;
        }
        *found as usize
    }

    /// Calls `each` with the numbers of the patterns that match a key, in no order. It may repeat a pattern with
    /// several `#`.
    pub fn each_match(&self, key: &str, mut each: impl FnMut(u32)) {
        let words: Vec<&str> = words(key).collect();
        if !self.nodes.is_empty() {
            self.visit(0, &words, &mut HashSet::new(), &mut each);
        }
    }

    /// `seen`: the visited nodes, each with the number of words that were left there.
    fn visit(&self, at: usize, words: &[&str], seen: &mut HashSet<(usize, usize)>, each: &mut impl FnMut(u32)) {
        if self.is_branching && !seen.insert((at, words.len())) {
            return;
        }
        let node = &self.nodes[at];
        if node.any != 0 {
            // `#` takes any number of the remaining words. If nothing follows it in the pattern, it takes them all.
            let any = &self.nodes[node.any as usize];
            any.here.iter().for_each(|&number| each(number));
            if any.one != 0 || !any.words.is_empty() {
                for taken in 0..words.len() {
                    self.step(any, &words[taken..], seen, each);
                }
            }
        }
        if words.is_empty() {
            node.here.iter().for_each(|&number| each(number));
        } else {
            self.step(node, words, seen, each);
        }
    }

    /// Follows the next word from a node.
    fn step(&self, node: &Node, words: &[&str], seen: &mut HashSet<(usize, usize)>, each: &mut impl FnMut(u32)) {
        let [word, rest @ ..] = words else { return };
        if node.one != 0 {
            self.visit(node.one as usize, rest, seen, each);
        }
        if let Some(&next) = node.words.get(*word) {
            self.visit(next as usize, rest, seen, each);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Matches word by word, as the definition says.
    fn matches(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern, key) {
            (["#", rest @ ..], _) => matches(rest, key) || !key.is_empty() && matches(pattern, &key[1..]),
            (["*", rest @ ..], [_, key @ ..]) => matches(rest, key),
            ([word, rest @ ..], [first, key @ ..]) => word == first && matches(rest, key),
            ([], []) => true,
            _ => false,
        }
    }

    fn found(patterns: &[String], key: &str) -> BTreeSet<u32> {
        let mut all = Patterns::default();
        (0..).zip(patterns).for_each(|(n, pattern)| all.add(pattern, n));
        let mut found = BTreeSet::new();
        all.each_match(key, |n| {
            found.insert(n);
        });
        found
    }

    /// Returns all texts of up to `most` words.
    fn texts(alphabet: &[&str], most: usize) -> Vec<String> {
        let mut all = vec![Vec::new()];
        let mut last = all.clone();
        for _ in 0..most {
            let longer = |text: &Vec<String>| {
                let text = text.clone();
                alphabet.iter().map(move |word| text.iter().cloned().chain([(*word).to_owned()]).collect::<Vec<_>>())
            };
            last = last.iter().flat_map(longer).collect();
            all.extend(last.clone());
        }
        all.into_iter().map(|words| words.join(".")).collect()
    }

    #[test]
    fn each_pair_of_a_small_alphabet_is_matched_as_defined() {
        let most = if cfg!(miri) { 2 } else { 5 };
        let patterns = texts(&["a", "b", "*", "#"], most);
        let keys = texts(&["a", "b", "c"], most + 1);
        let mut all = Patterns::default();
        (0..).zip(&patterns).for_each(|(n, pattern)| all.add(pattern, n));
        let mut pairs = 0;
        for key in &keys {
            let of_key: Vec<&str> = words(key).collect();
            let expected: BTreeSet<u32> = (0..)
                .zip(&patterns)
                .filter(|(_, pattern)| matches(&words(pattern).collect::<Vec<_>>(), &of_key))
                .map(|(n, _)| n)
                .collect();
            pairs += patterns.len();
            let mut found = BTreeSet::new();
            all.each_match(key, |n| {
                found.insert(n);
            });
            assert_eq!(found, expected, "key {key}");
        }
        assert!(cfg!(miri) || pairs > 1_000_000, "{pairs}");
    }

    proptest! {
        #![proptest_config(crate::cases(2_000))]
        #[test]
        fn random_patterns_and_keys_are_matched_as_defined(
            patterns in prop::collection::vec("([abc*#]|ab|ä)(\\.([abc*#]|ab|ä)?){0,8}", 0..40),
            keys in prop::collection::vec("([abc]|ab|ä)?(\\.([abc]|ab|ä)?){0,10}", 1..12),
        ) {
            for key in keys {
                let of_key: Vec<&str> = words(&key).collect();
                for n in found(&patterns, &key) {
                    prop_assert!(matches(&words(&patterns[n as usize]).collect::<Vec<_>>(), &of_key));
                }
                let count = patterns.iter().filter(|p| matches(&words(p).collect::<Vec<_>>(), &of_key)).count();
                prop_assert_eq!(found(&patterns, &key).len(), count);
            }
        }
    }

    #[test]
    fn keys_and_patterns_have_their_bounds() {
        assert_eq!(check_key(""), Ok(()));
        assert_eq!(check_key("a..b"), Ok(()));
        assert_eq!(check_key(&"a.".repeat(MAX_WORDS)), Err(Fault::TooManyWords(MAX_WORDS + 1)));
        assert_eq!(check_key(&"a".repeat(MAX_BYTES + 1)), Err(Fault::TooLong(MAX_BYTES + 1)));
        assert_eq!(check_key("a*.#b"), Ok(()));
        assert_eq!(check_pattern("a.*.#"), Ok(()));
        for wrong in ["a*", "#b", "a.b#", "**"] {
            assert_eq!(check_pattern(wrong), Err(Fault::Wildcard), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_of_many_wildcards_does_not_try_all_ways() {
        let pattern = ["#"; 16].join(".a.");
        let mut all = Patterns::default();
        all.add(&pattern, 0);
        let mut count = 0;
        all.each_match(&["a"; 32].join("."), |_| count += 1);
        assert!((1..=33).contains(&count), "{count}");
        all.each_match(&["b"; 32].join("."), |_| panic!("it has no a"));
    }

    /// Twenty thousand patterns. Three of them match the key: the search visits a few nodes.
    #[test]
    fn a_look_does_not_go_through_all_patterns() {
        let patterns: Vec<String> = (0..if cfg!(miri) { 50 } else { 20_000 })
            .map(|n| format!("shop.{n}.*"))
            .chain(["#".into(), "shop.7.#".into()])
            .collect();
        assert_eq!(found(&patterns, "shop.7.sold").len(), 3);
    }
}
