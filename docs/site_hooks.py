"""Hooks of the documentation site."""


def on_page_markdown(markdown: str, page, **_: object) -> str:
    """The list of changes stands at the top of the repository; its links are written from there."""
    return markdown.replace("](docs/", "](") if page.file.src_path == "changelog.md" else markdown
