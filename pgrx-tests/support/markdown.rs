//! Takes a page of documentation apart: fenced blocks, headings, links, mentions of paths.

/// A fenced block.
pub struct Block {
    /// The line of its opening fence, from 1.
    pub line: usize,
    /// The text after the opening fence.
    pub info: String,
    pub body: String,
    /// The last line before it that is neither empty nor in a block.
    pub lead: String,
}

/// Returns the fenced blocks of a page. An unclosed block ends with the page.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_open = false;
    let mut lead = "";
    for (line, content) in (1..).zip(text.lines()) {
        match (content.trim_start().strip_prefix("```"), is_open) {
            (Some(info), false) => {
                let (info, lead) = (info.trim().to_owned(), lead.to_owned());
                found.push(Block { line, info, body: String::new(), lead });
                is_open = true;
            }
            (Some(_), true) => is_open = false,
            (None, true) => {
                let block = found.last_mut().expect("an open block");
                block.body.push_str(content);
                block.body.push('\n');
            }
            (None, false) if content.trim().is_empty() => {}
            (None, false) => lead = content,
        }
    }
    found
}

/// Returns the lines outside fenced blocks, with their numbers from 1.
pub fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_open = false;
    let mut found = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        if content.trim_start().starts_with("```") {
            is_open = !is_open;
        } else if !is_open {
            found.push((line, content));
        }
    }
    found
}

/// Returns the text from the heading that contains `` `title` `` to the next heading of the same level or a higher one.
pub fn section<'a>(text: &'a str, title: &str) -> Option<&'a str> {
    let quoted = format!("`{title}`");
    let mut at = 0;
    let mut begin: Option<(usize, usize)> = None;
    let mut is_open = false;
    for line in text.split_inclusive('\n') {
        if line.starts_with("```") {
            is_open = !is_open;
        }
        let level = line.bytes().take_while(|b| *b == b'#').count();
        if level > 0 && !is_open {
            if let Some((start, wanted)) = begin
                && level <= wanted
            {
                return Some(&text[start..at]);
            }
            if begin.is_none() && line.contains(&quoted) {
                begin = Some((at, level));
            }
        }
        at += line.len();
    }
    begin.map(|(start, _)| &text[start..])
}

/// Returns the targets of links, with their lines.
pub fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, content) in prose(text) {
        let mut rest = content;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let end = rest.find(')').unwrap_or(rest.len());
            found.push((line, rest[..end].to_owned()));
        }
    }
    found
}

/// Returns the texts in backquotes, with their lines.
pub fn code_spans(text: &str) -> Vec<(usize, String)> {
    let spans = |content: &str| content.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    prose(text).into_iter().flat_map(|(line, content)| spans(content).into_iter().map(move |s| (line, s))).collect()
}

/// Returns the anchors of a page's headings, as GitHub makes them.
pub fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).into_iter().filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}
