// Starts `wse-sim csl lsp` for files in CSL and `wse-sim csl debug --dap` for a debugger, and hands their answers to the editor.
const { DebugAdapterExecutable, debug, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate(context) {
  context.subscriptions.push(
    debug.registerDebugAdapterDescriptorFactory("wse-sim-csl", {
      createDebugAdapterDescriptor() {
        const command = workspace.getConfiguration("wse-sim").get("command", "wse-sim");
        return new DebugAdapterExecutable(command, ["csl", "debug", "--dap"]);
      },
    }),
  );
  const command = workspace.getConfiguration("wse-sim").get("command", "wse-sim");
  const server = { command, args: ["csl", "lsp"] };
  client = new LanguageClient("wse-sim-csl", "CSL (wse-sim)", server, { documentSelector: [{ language: "csl" }] });
  return client.start();
}

function deactivate() {
  return client ? client.stop() : undefined;
}

module.exports = { activate, deactivate };
