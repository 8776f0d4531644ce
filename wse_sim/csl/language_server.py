"""Language server: :mod:`wse_sim.csl.language` over the Language Server Protocol, on standard input and
output. Needs the extra ``lsp``."""

from __future__ import annotations

from pathlib import Path

from lsprotocol import types
from pygls import uris
from pygls.lsp.server import LanguageServer

from wse_sim._version import __version__
from wse_sim.csl.language import Language, Problem

_KINDS = {
    "builtin": types.CompletionItemKind.Function, "fn": types.CompletionItemKind.Function, "task": types.CompletionItemKind.Event,
    "const": types.CompletionItemKind.Constant, "library": types.CompletionItemKind.Module,
}  # fmt: skip


def path_of(uri: str) -> Path:
    """Return the file path of a document's URI."""
    return Path(uris.to_fs_path(uri) or uri)


def diagnostic(problem: Problem) -> types.Diagnostic:
    """Convert a problem to a diagnostic of the protocol."""
    start = types.Position(problem.line, problem.column)
    end = types.Position(problem.line, problem.column + problem.length)
    return types.Diagnostic(
        types.Range(start, end), problem.text, severity=types.DiagnosticSeverity.Error, source="wse-sim"
    )


def make_server() -> LanguageServer:
    """Create a server with diagnostics, hover, definitions and completions."""
    server, language = LanguageServer("wse-sim-csl", __version__), Language()

    def look(uri: str, *, is_typing: bool = False) -> None:
        text = server.workspace.get_text_document(uri).source
        found = [
            diagnostic(problem)
            for problem in language.faults(
                path_of(uri), text, syntax_only=is_typing and not language.is_quick(path_of(uri))
            )
        ]
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=found))

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        look(params.text_document.uri, is_typing=True)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: types.DidSaveTextDocumentParams) -> None:
        look(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        uri, at = params.text_document.uri, params.position
        said = language.hover(
            path_of(uri), server.workspace.get_text_document(uri).source, at.line, at.character
        )
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, said)) if said else None

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> types.Location | None:
        uri, at = params.text_document.uri, params.position
        place = language.definition(
            path_of(uri), server.workspace.get_text_document(uri).source, at.line, at.character
        )
        if place is None:
            return None
        start = types.Position(place.line, place.column)
        return types.Location(uris.from_fs_path(str(place.path)) or uri, types.Range(start, start))

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["@", ".", "<"])
    )
    def completion(params: types.CompletionParams) -> types.CompletionList:
        uri, at = params.text_document.uri, params.position
        names = language.completions(
            path_of(uri), server.workspace.get_text_document(uri).source, at.line, at.character
        )
        items = [
            types.CompletionItem(name, kind=_KINDS.get(kind, types.CompletionItemKind.Variable), detail=kind)
            for name, kind in names
        ]
        return types.CompletionList(is_incomplete=False, items=items)

    return server


def serve() -> None:
    """Answer an editor until it ends the session."""
    make_server().start_io()
