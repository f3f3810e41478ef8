use crate::python;
use models::tokenizer::Tokenizer;

/// Every character is a token, alone and inside a word: ids then show each step of the
/// normaliser and the splitter.
fn vocabulary() -> String {
    let mut tokens: Vec<String> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        .map(str::to_owned)
        .into();
    let characters = (0x21..0x20000)
        .filter_map(char::from_u32)
        .filter(|c| !c.is_control() && !c.is_whitespace());
    for c in characters {
        tokens.push(c.to_string());
        tokens.push(format!("##{c}"));
    }
    tokens.extend(["pump", "bear", "##ing", "temperature", "high"].map(str::to_owned));
    tokens.join("\n")
}

fn check(texts: &[String], limit: usize) -> Vec<String> {
    let vocabulary = vocabulary();
    let tokenizer = Tokenizer::parse(&vocabulary).unwrap();
    let expected = python::token_ids(&vocabulary, texts, limit);
    assert_eq!(expected.len(), texts.len());
    let pairs = texts.iter().zip(expected);
    pairs
        .filter(|(text, ids)| tokenizer.encode(text, limit) != *ids)
        .map(|(text, _)| text.clone())
        .collect()
}

#[test]
fn every_character_is_cut_as_tokenizers_cuts_it() {
    let texts: Vec<String> = (1..0x20000)
        .filter_map(char::from_u32)
        .map(|c| format!("a{c}b"))
        .collect();
    let different = check(&texts, 16);
    // Decomposed by Unicode 13 and 16, whole in the older tables of tokenizers: scripts in
    // which no alarm is written.
    let newer = [
        (0x105c9, 0x105e4),
        (0x11383, 0x113c8),
        (0x11938, 0x11938),
        (0x16121, 0x16d6a),
    ];
    let code = |text: &String| text.chars().nth(1).map_or(0, u32::from);
    let unexpected: Vec<String> = different
        .iter()
        .map(code)
        .filter(|c| {
            !newer
                .iter()
                .any(|(first, last)| (first..=last).contains(&c))
        })
        .map(|c| format!("U+{c:04X}"))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    assert!(
        different.len() <= 21,
        "{} characters of newer scripts",
        different.len()
    );
}

#[test]
fn words_and_sentences_are_cut_as_tokenizers_cuts_them() {
    let mut texts: Vec<String> = [
        "",
        " ",
        "Pump P-101 bearing temperature HIGH: 95.2 °C exceeds limit (90.0)",
        "Überdruck im Kessel! Füllstand niedrig; Ventil öffnen?",
        "Température élevée du palier n°3 — arrêt d'urgence",
        "轴承温度过高 pump 轴承",
        "Подшипник: температура высокая",
        "préssure\tlow\r\nline two\u{a0}nbsp\u{3000}wide",
        "ﬁlter ﬂow ½ ² №5",
        "[CLS] injected [SEP] [UNK]",
        "a\u{301}\u{302}\u{200b}\u{feff}b",
        "ＦＵＬＬ ｗｉｄｔｈ İstanbul ẞ",
        "$10 + 5% ^caret ~tilde `tick` |pipe| <tag>",
        "emoji 🔥 fire 🧯",
    ]
    .map(str::to_owned)
    .into();
    texts.push("x".repeat(100));
    texts.push("x".repeat(101));
    texts.push("pump ".repeat(500));
    // Seeded mixtures of characters from many blocks.
    let alphabet: Vec<char> = "aBé中ñ.,!- \u{301}\tЖ°ß𝒳\u{200d}5İ—".chars().collect();
    let mut state = 7u64;
    for _ in 0..500 {
        let mut text = String::new();
        for _ in 0..24 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            text.push(alphabet[(state >> 33) as usize % alphabet.len()]);
        }
        texts.push(text);
    }
    assert_eq!(check(&texts, 32), Vec::<String>::new());
}
