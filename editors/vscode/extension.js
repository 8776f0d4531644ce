// Starts `wse-sim csl lsp` for files in CSL and hands its answers to the editor.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate() {
  const command = workspace.getConfiguration("wse-sim").get("command", "wse-sim");
  const server = { command, args: ["csl", "lsp"] };
  client = new LanguageClient("wse-sim-csl", "CSL (wse-sim)", server, { documentSelector: [{ language: "csl" }] });
  return client.start();
}

function deactivate() {
  return client ? client.stop() : undefined;
}

module.exports = { activate, deactivate };
