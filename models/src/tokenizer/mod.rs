//! WordPiece as uncased BERT models use it (Devlin et al. 2018; the pieces of
//! `tokenizer.json` of all-MiniLM-L6-v2): clean, split CJK, drop accents, lower, split at
//! blanks and punctuation, then longest match from the left.
//!
//! Memory and time are bounded by the token limit: text behind the last token that fits
//! is not looked at.

mod tables;

use std::collections::HashMap;
use unicode_normalization::UnicodeNormalization;

/// Characters of a word beyond which it is one unknown token.
const MAX_WORD: usize = 100;
/// Tokens that a vocabulary may hold.
pub const MAX_VOCABULARY: usize = 1 << 20;

/// Why a vocabulary was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VocabularyError {
    /// A special token is missing.
    #[error("the vocabulary lacks `{token}`")]
    Special {
        /// Which.
        token: &'static str,
    },
    /// More than [`MAX_VOCABULARY`] lines.
    #[error("the vocabulary has more than {MAX_VOCABULARY} tokens")]
    TooLarge,
}

/// A vocabulary, ready to encode.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// Tokens that begin a word.
    first: HashMap<Box<str>, i64>,
    /// Tokens that go on, without `##`.
    rest: HashMap<Box<str>, i64>,
    /// Bytes of the longest token.
    longest: usize,
    unknown: i64,
    class: i64,
    separator: i64,
}

impl Tokenizer {
    /// From `vocab.txt`: a token a line, its number is the line, from 0.
    pub fn parse(vocabulary: &str) -> Result<Self, VocabularyError> {
        let (mut first, mut rest) = (HashMap::new(), HashMap::new());
        let mut longest = 0;
        for (line, token) in vocabulary.lines().enumerate() {
            let id = i64::try_from(line).unwrap_or(i64::MAX);
            if line >= MAX_VOCABULARY {
                return Err(VocabularyError::TooLarge);
            }
            longest = longest.max(token.len());
            match token.strip_prefix("##") {
                Some(part) if !part.is_empty() => rest.insert(part.into(), id),
                _ => first.insert(token.into(), id),
            };
        }
        let special = |token: &'static str| {
            first
                .get(token)
                .copied()
                .ok_or(VocabularyError::Special { token })
        };
        Ok(Self {
            unknown: special("[UNK]")?,
            class: special("[CLS]")?,
            separator: special("[SEP]")?,
            first,
            rest,
            longest,
        })
    }

    /// `[CLS]`, at most `max - 2` tokens, `[SEP]`. `max` below 2 counts as 2.
    pub fn encode(&self, text: &str, max: usize) -> Vec<i64> {
        let room = max.max(2) - 1;
        let mut ids = vec![self.class];
        let mut word = String::new();
        for c in normal(text) {
            if ids.len() >= room {
                break;
            }
            if c.is_whitespace() {
                self.word(&mut word, &mut ids);
            } else if is_punctuation(c) {
                self.word(&mut word, &mut ids);
                word.push(c);
                self.word(&mut word, &mut ids);
            } else if word.len() <= 4 * MAX_WORD {
                // A longer word is unknown whatever follows: no need to keep it all.
                word.push(c);
            }
        }
        self.word(&mut word, &mut ids);
        ids.truncate(room);
        ids.push(self.separator);
        ids
    }

    /// Appends the pieces of a word, or one unknown token, and empties it.
    fn word(&self, word: &mut String, ids: &mut Vec<i64>) {
        if word.is_empty() {
            return;
        }
        let start = ids.len();
        let mut left = word.as_str();
        let mut pieces = &self.first;
        let short = word.chars().count() <= MAX_WORD;
        while short && !left.is_empty() {
            let longest = left.len().min(self.longest);
            let found = (1..=longest)
                .rev()
                .filter(|end| left.is_char_boundary(*end))
                .find_map(|end| Some((*pieces.get(left.get(..end)?)?, end)));
            let Some((id, end)) = found else { break };
            ids.push(id);
            left = left.get(end..).unwrap_or_default();
            pieces = &self.rest;
        }
        if !short || !left.is_empty() {
            ids.truncate(start);
            ids.push(self.unknown);
        }
        word.clear();
    }
}

/// The characters that the splitter sees.
fn normal(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars()
        .filter(|c| !is_dropped(*c))
        .flat_map(|c| {
            let blank = |on: bool| on.then_some(' ');
            let apart = is_cjk(c);
            let c = if c.is_whitespace() { ' ' } else { c };
            blank(apart).into_iter().chain([c]).chain(blank(apart))
        })
        .nfd()
        .filter(|c| !within(&tables::DROPPED, *c))
        .flat_map(char::to_lowercase)
}

fn within(table: &[(u32, u32)], c: char) -> bool {
    let code = u32::from(c);
    let place = table.partition_point(|(_, last)| *last < code);
    table.get(place).is_some_and(|(first, _)| *first <= code)
}

/// What is no blank and vanishes before words are cut.
fn is_dropped(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n' | '\r')
}

/// ASCII symbols count as punctuation too, as BERT has it.
fn is_punctuation(c: char) -> bool {
    if c.is_ascii() {
        c.is_ascii_punctuation()
    } else {
        within(&tables::PUNCTUATION, c)
    }
}

/// The ideograph blocks that BERT sets apart.
fn is_cjk(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4e00..=0x9fff
            | 0x3400..=0x4dbf
            | 0x20000..=0x2a6df
            | 0x2a700..=0x2b73f
            | 0x2b740..=0x2b81f
            | 0x2b920..=0x2ceaf
            | 0xf900..=0xfaff
            | 0x2f800..=0x2fa1f
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VOCABULARY: &str =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\nbear\n##ing\nnoise\n.\n5\n##5\nun\n##want\n##ed\n中";

    fn check(text: &str, max: usize, expect: &[i64]) {
        let tokenizer = Tokenizer::parse(VOCABULARY).unwrap();
        assert_eq!(tokenizer.encode(text, max), expect, "{text:?}");
    }

    #[test]
    fn words_are_cut_by_the_longest_match() {
        check("", 8, &[2, 3]);
        check("Bearing NOISE.", 8, &[2, 4, 5, 6, 7, 3]);
        check("unwanted 55", 16, &[2, 10, 11, 12, 8, 9, 3]);
        check("bearxing", 8, &[2, 1, 3]);
        check("nöise\u{0}\tnoise\u{200b}", 8, &[2, 6, 6, 3]);
        check("中中noise", 8, &[2, 13, 13, 6, 3]);
        check(&"a".repeat(101), 8, &[2, 1, 3]);
    }

    #[test]
    fn the_limit_holds() {
        check("noise noise noise noise", 4, &[2, 6, 6, 3]);
        check("noise", 0, &[2, 3]);
        check("unwanted unwanted", 4, &[2, 10, 11, 3]);
    }

    #[test]
    fn a_vocabulary_without_its_special_tokens_is_refused() {
        let error = Tokenizer::parse("[UNK]\n[CLS]").unwrap_err();
        assert_eq!(error, VocabularyError::Special { token: "[SEP]" });
    }

    proptest! {
        #[test]
        fn any_text_is_encoded_within_the_limit(text in any::<String>(), max in 2usize..64) {
            let tokenizer = Tokenizer::parse(VOCABULARY).unwrap();
            let ids = tokenizer.encode(&text, max);
            prop_assert!(ids.len() >= 2 && ids.len() <= max);
            prop_assert!(ids[0] == 2 && ids[ids.len() - 1] == 3);
        }
    }
}
