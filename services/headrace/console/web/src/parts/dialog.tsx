// Dialogs and drawers: the browser's own element traps the focus, closes on Escape and gives the
// focus back.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "./icons";

interface DialogProps {
  readonly title: ComponentChildren;
  readonly drawer?: boolean;
  readonly onClose: () => void;
  readonly footer?: ComponentChildren;
  readonly children: ComponentChildren;
}

export function Dialog({ title, drawer = false, onClose, footer, children }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const left = useRef(false);
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => {
      left.current = true;
      dialog?.close();
    };
  }, []);
  // The event of a close comes later: a dialog that gave way to another one must not close that.
  const closed = () => {
    if (!left.current) onClose();
  };
  const outside = (event: MouseEvent) => {
    if (event.target === element.current) element.current?.close();
  };
  return (
    <dialog
      ref={element}
      class={drawer ? "drawer" : undefined}
      aria-labelledby="dialog-title"
      onClose={closed}
      onClick={outside}
    >
      <header>
        <h2 id="dialog-title">{title}</h2>
        <button type="button" class="icon-button" aria-label="Close" onClick={() => element.current?.close()}>
          <Icon name="close" />
        </button>
      </header>
      <div class="body stack">{children}</div>
      {footer && <footer>{footer}</footer>}
    </dialog>
  );
}
