// One event beside the list that it was opened from.
import { addressed, fromAddress } from "../pure/position";
import { eventHref } from "../pure/search";
import { useQuery } from "../state/query";
import type { EventAnswer } from "../types";
import { Dialog } from "./dialog";
import { EventFacts } from "./event-facts";
import { Answered } from "./layout";
import { Copy } from "./marks";
import { Diff } from "./value";

export function EventDrawer({ position, onClose }: { position: string; onClose: () => void }) {
  const shown = fromAddress(position);
  const answer = useQuery<EventAnswer>(`/events/${addressed(shown)}`);
  const title = (
    <span class="line">
      <span class="position">{shown}</span>
      <Copy text={shown} label="Copy the position" />
    </span>
  );
  const footer = <a class="button primary" href={eventHref(shown)}>Trace and details</a>;
  return (
    <Dialog title={title} drawer onClose={onClose} footer={footer}>
      <Answered answer={answer}>
        {({ event }) => (
          <>
            <EventFacts of={event} />
            <Diff columns={event.columns} label="Columns before and after" />
          </>
        )}
      </Answered>
    </Dialog>
  );
}
