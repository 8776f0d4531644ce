// Search without a server: a browser starts no worker for a page that was opened as a file, so a hidden frame runs its script.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const loaded = new Promise((done) => (this.frame.loaded = done));
      this.ready = loaded;
      document.documentElement.append(this.frame);
      const inner = this.frame.contentWindow.document;
      inner.open();
      inner.write(
        "<script>window.postMessage = (data) => frameElement.answer(data);<\/script>" +
          `<script src="${url}" onload="frameElement.loaded()"><\/script>`,
      );
      inner.close();
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
