//! The upgrade scripts: from the last released version to the version of this tree.
//!
//! Responsible for what an upgrade runs. First comes the transition, which is written by hand and has only what an
//! upgrade alone does, such as adding a column or dropping a signature. Then come all statements of the sources that
//! are new or changed since the release. Before both, the script checks that the server runs this version's library and
//! takes all locks together. Not responsible for comparing the result with a fresh installation: a test does that
//! (`operations::upgrade`).
//!
//! Invariant: a released statement, in whatever layout, is not run again, unless the transition drops what it makes.

use std::collections::HashSet;

use eyre::{Result, bail};

use crate::files::{EXTENSION, read, root};
use crate::frozen;
use crate::script::{self, Kind, Sources, Statement};

/// The folder of released scripts, below the root.
pub const FOLDER: &str = "sql";

/// A step from one version of an extension to the next.
pub struct Step<'a> {
    pub from: &'a str,
    pub to: &'a str,
    /// The script of the earlier version.
    pub released: &'a str,
    /// Statements that only the upgrade runs, before the others.
    pub transition: &'a str,
    /// Statements that only the upgrade runs, after the others.
    pub last: &'a str,
}

impl Step<'_> {
    /// Returns the name of the script.
    pub fn name(&self, extension: &str) -> String {
        format!("{extension}--{}--{}.sql", self.from, self.to)
    }
}

/// Returns the name and the text of the script that upgrades an extension to this version. `None` if no earlier version
/// of this extension was released.
pub fn script(sources: &Sources, version: &str) -> Result<Option<(String, String)>> {
    let Sources { extension, .. } = sources;
    // The last version released before this one. This one may be released too.
    let now = frozen::numbers(version);
    let before = frozen::versions()?.into_iter().rev().find(|before| Some(*before) < now);
    let Some(before) = before.map(frozen::text) else { return Ok(None) };
    let released = root().join(FOLDER).join(format!("{extension}--{before}.sql"));
    if !released.exists() {
        return Ok(None);
    }
    let file = |end: &str| root().join("sql/transition").join(format!("{extension}--{before}--{version}{end}.sql"));
    let last = file(".after");
    let step = Step {
        from: &before,
        to: version,
        released: &read(&released)?,
        transition: &read(&file(""))?,
        last: &if last.exists() { read(&last)? } else { String::new() },
    };
    Ok(Some((step.name(extension), made(sources, &step)?)))
}

/// Returns the text of the script that leads to the present sources.
pub fn made(sources: &Sources, step: &Step<'_>) -> Result<String> {
    let body = body(step.released, &sources.text()?, step.transition)?;
    let head = script::echo(&format!("ALTER EXTENSION {} UPDATE TO '{}'", sources.extension, step.to));
    let mut before = if sources.extension == EXTENSION { library(step.to) } else { String::new() };
    before += &dependents(&dropped(step.transition));
    let mut after = sources.after_upgrade.to_owned();
    if step.transition.contains(" RENAME TO former_") {
        after += FORMER;
    }
    if !step.last.is_empty() {
        after += &format!("\n{}", step.last);
    }
    Ok(format!(
        "{head}\n-- Made by `make generate` from {} and the transition: do not edit.\n\nSET LOCAL search_path TO \
            pg_catalog, pg_temp;\n{before}{}{body}\n{after}",
        sources.folder,
        locks(step.released, &body)?,
    ))
}

/// Functions that a transition has renamed pass their grants on to the new functions of these names. Then they are
/// dropped.
const FORMER: &str = "
DO $former$
DECLARE
    former record;
    grantee text;
BEGIN
    FOR former IN
        SELECT p.oid::regprocedure AS name, p.proacl, p.proowner, n.oid::regprocedure AS new
        FROM pg_proc AS p JOIN pg_proc AS n ON n.proname = substr(p.proname, 8)
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname LIKE 'former\\_%'
          AND n.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
    LOOP
        FOR grantee IN
            SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
            FROM aclexplode(former.proacl) AS a WHERE a.grantee <> former.proowner
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', former.new, grantee);
        END LOOP;
        EXECUTE format('DROP FUNCTION %s', former.name);
    END LOOP;
END
$former$;
";

/// Refuses an upgrade before the server has loaded the library of the new version.
fn library(version: &str) -> String {
    let numbers = version.replace('.', ",");
    format!(
        "
DO $library$
BEGIN
    PERFORM queue_internal.assert_loaded();
    IF string_to_array(current_setting('pg_queue.library_version'), '.')::integer[] < '{{{numbers}}}'::integer[] THEN
        RAISE EXCEPTION 'the server has loaded a library of pg_queue that is older than {version}'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Restart the server, then run ALTER EXTENSION pg_queue UPDATE again.';
    END IF;
END
$library$;
"
    )
}

/// Refuses an upgrade while other roles' objects depend on what it drops. The error names these objects and their
/// owners.
fn dependents(dropped: &[String]) -> String {
    // Parts of an argument list are not names.
    let mut names: Vec<&str> =
        dropped.iter().map(String::as_str).filter(|name| name.contains('.') && !name.contains(')')).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "
DO $dependents$
DECLARE
    names constant text[] := '{{
        {}}}';
    found text;
BEGIN
    WITH gone AS (
        SELECT 'pg_proc'::regclass AS classid, p.oid AS objid FROM pg_proc AS p
        WHERE format('%s.%s', p.pronamespace::regnamespace, p.proname) = ANY (names)
        UNION ALL
        SELECT o.classid, o.objid FROM pg_class AS c
        CROSS JOIN LATERAL (VALUES ('pg_class'::regclass, c.oid), ('pg_type', c.reltype)) AS o (classid, objid)
        WHERE format('%s.%s', c.relnamespace::regnamespace, c.relname) = ANY (names)
    ), dependent AS (
        -- A view depends by its rule.
        SELECT CASE WHEN r.oid IS NULL THEN d.classid ELSE 'pg_class'::regclass END AS classid,
               coalesce(r.ev_class, d.objid) AS objid
        FROM gone AS g JOIN pg_depend AS d ON d.refclassid = g.classid AND d.refobjid = g.objid
        LEFT JOIN pg_rewrite AS r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
        WHERE d.deptype IN ('n', 'a')
    )
    SELECT string_agg(DISTINCT pg_describe_object(d.classid, d.objid, 0) || coalesce(
        ' of role \"' || pg_get_userbyid(coalesce(c.relowner, p.proowner)) || '\"', ''), ', ') INTO found
    FROM dependent AS d
    LEFT JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
    LEFT JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
    -- What is ours is a member, or a trigger that calls a member.
    LEFT JOIN pg_trigger AS t ON d.classid = 'pg_trigger'::regclass AND t.oid = d.objid
    WHERE NOT EXISTS (SELECT FROM pg_depend AS e
                      WHERE e.deptype = 'e' AND (e.classid, e.objid)
                            IN ((d.classid, d.objid), ('pg_proc'::regclass, t.tgfoid)));
    IF found IS NOT NULL THEN
        RAISE EXCEPTION 'objects of others depend on what the update drops' USING ERRCODE = '2BP01',
            DETAIL = found || '.', HINT = 'Drop them, update, and make them anew.';
    END IF;
END
$dependents$;
",
        names.chunks(3).map(|line| line.join(",")).collect::<Vec<_>>().join(",\n        ")
    )
}

/// Takes the locks of all released tables and views that the script changes. It takes them together: a script that held
/// some and waited for another would stop every session. If it waited for a transaction that waits for it, neither
/// would ever end.
fn locks(released: &str, body: &str) -> Result<String> {
    let known: Vec<Statement> = script::statements(released)?;
    let mut names: Vec<String> = Vec::new();
    for statement in script::statements(body)? {
        let code = script::without_comments(&statement.text);
        let words: Vec<&str> = code.split([' ', '\n', ';', '(']).filter(|word| !word.is_empty()).collect();
        let name = match words[..] {
            ["CREATE", "OR", "REPLACE", "VIEW", name, ..] | ["ALTER" | "DROP", "TABLE" | "VIEW", name, ..] => name,
            _ => continue,
        };
        // A loop makes the tables of segments.
        let (base, number) = name.rsplit_once('_').unwrap_or((name, ""));
        let is_of_segment = number.parse::<u8>().is_ok() && released.contains(&format!("CREATE TABLE {base}_%1$s ("));
        if (is_of_segment || known.iter().any(|known| known.name == name)) && !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    if names.is_empty() {
        return Ok(String::new());
    }
    Ok(format!(
        "
DO $locks$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    LOOP
        BEGIN
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE {} IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.2);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$locks$;
",
        names.chunks(4).map(|line| line.join(", ")).collect::<Vec<_>>().join(",\n                ")
    ))
}

/// Returns the transition and the new or changed statements of the sources.
fn body(released: &str, sources: &str, transition: &str) -> Result<String> {
    let old = script::statements(released)?;
    let old_texts: HashSet<String> = old.iter().map(|statement| script::canonical(&statement.text)).collect();
    let old_names: HashSet<&str> = old.iter().map(|statement| statement.name.as_str()).collect();
    let dropped = dropped(transition);
    let mut body = String::new();
    if !transition.trim().is_empty() {
        body += &format!("\n{}\n", transition.trim());
    }
    for statement in script::statements(sources)? {
        let Statement { text, kind, name } = &statement;
        let is_anew = dropped.iter().any(|dropped| dropped == name);
        if old_texts.contains(&script::canonical(text)) && !is_anew && *kind != Kind::Each {
            continue;
        }
        let is_changed = *kind == Kind::Once && !is_anew && (name.is_empty() || old_names.contains(name.as_str()));
        if is_changed {
            // If a statement can be run only once, the transition must make its change.
            if !transition.contains(name.as_str()) || name.is_empty() && transition.trim().is_empty() {
                bail!(
                    "the transition lacks what is changed here: {}",
                    script::without_comments(text).lines().next().unwrap_or_default()
                );
            }
            continue;
        }
        body += "\n";
        body += &match kind {
            // A new function is not made with OR REPLACE, because another role may have made one with its name.
            Kind::Replaceable if !is_anew && old_names.contains(name.as_str()) => {
                text.trim().replacen("CREATE ", "CREATE OR REPLACE ", 1)
            }
            _ => text.trim().to_owned(),
        };
        body += "\n";
    }
    Ok(body)
}

/// Returns the functions and views that a transition drops or renames.
fn dropped(transition: &str) -> Vec<String> {
    let kinds = ["DROP FUNCTION ", "DROP PROCEDURE ", "DROP VIEW ", "ALTER FUNCTION "];
    let after =
        kinds.iter().flat_map(|kind| transition.match_indices(kind).map(|(at, _)| &transition[at + kind.len()..]));
    after
        .flat_map(|rest| rest.split(';').next().unwrap_or_default().split(", "))
        .filter_map(|name| name.trim().split(['(', ' ', '\n']).next())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASED: &str = "CREATE TABLE queue.t (a int);
CREATE FUNCTION queue.same() RETURNS int LANGUAGE sql AS 'SELECT 1';
COMMENT ON FUNCTION queue.same IS 'same';
CREATE FUNCTION queue.changed() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE VIEW queue.v AS SELECT 1;
COMMENT ON VIEW queue.v IS 'v';
DO $each_view$ BEGIN NULL; END $each_view$;
";

    #[test]
    fn only_new_and_changed_statements_are_run() {
        let sources = RELEASED.replace(
            "queue.changed() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "queue.changed() RETURNS int LANGUAGE sql AS 'SELECT 2'",
        ) + "CREATE TABLE queue.new (a int);\nCREATE VIEW queue.w AS SELECT 1;\n";
        let made = body(RELEASED, &sources, "").unwrap();
        assert_eq!(
            made,
            "\nCREATE OR REPLACE FUNCTION queue.changed() RETURNS int LANGUAGE sql AS 'SELECT 2';\n\
             \nDO $each_view$ BEGIN NULL; END $each_view$;\n\nCREATE TABLE queue.new (a int);\n\nCREATE VIEW queue.w \
             AS SELECT 1;\n"
        );
    }

    #[test]
    fn a_statement_in_another_layout_is_not_run() {
        let sources = RELEASED.replace("t (a int)", "t (\n    a int\n)").replace("IS 'same'", "IS\n    'sa'\n    'me'");
        assert_eq!(body(RELEASED, &sources, "").unwrap(), "\nDO $each_view$ BEGIN NULL; END $each_view$;\n");
    }

    #[test]
    fn dropped_objects_are_made_anew_with_their_comments() {
        let made = body(RELEASED, RELEASED, "DROP VIEW queue.v;").unwrap();
        assert!(made.starts_with("\nDROP VIEW queue.v;\n\nCREATE VIEW queue.v"), "{made}");
        assert!(made.contains("COMMENT ON VIEW queue.v IS 'v';") && !made.contains("queue.same"), "{made}");
    }

    #[test]
    fn changed_tables_and_views_are_locked_together() {
        let body = "ALTER TABLE queue.t ADD b int;\nCREATE OR REPLACE VIEW queue.v AS SELECT 2;\n\
CREATE OR REPLACE VIEW queue.new AS SELECT 1;
ALTER VIEW queue.v RENAME a TO b;\nCREATE OR REPLACE FUNCTION queue.f() RETURNS int LANGUAGE sql AS 'SELECT 1';\n";
        let made = locks(RELEASED, body).unwrap();
        assert!(made.contains("LOCK TABLE queue.t, queue.v IN ACCESS EXCLUSIVE MODE;"), "{made}");
        assert_eq!(locks(RELEASED, "").unwrap(), "");
        assert!(library("0.4.0").contains("< '{0,4,0}'::integer[]"));
    }

    #[test]
    fn a_table_that_changes_needs_a_transition() {
        let sources = RELEASED.replace("queue.t (a int)", "queue.t (a int, b int)");
        assert!(body(RELEASED, &sources, "").unwrap_err().to_string().contains("CREATE TABLE queue.t"));
        let made = body(RELEASED, &sources, "ALTER TABLE queue.t ADD COLUMN b int;").unwrap();
        assert!(made.contains("ADD COLUMN b int;") && !made.contains("CREATE TABLE"), "{made}");
    }
}
