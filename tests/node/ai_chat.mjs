// A chat of the AI SDK: DefaultChatTransport sends what its argument says and prints what a page would show.
//
// {api, chatId, messages, task, resume}: sends the last message, or with `resume` only follows what goes on. When the
// stream breaks, it resumes as useChat({resume: true}) does; when nothing goes on any more, it sends the message again.
import { DefaultChatTransport, readUIMessageStream } from "ai";

const options = JSON.parse(process.argv[2]);
const transport = new DefaultChatTransport({ api: options.api, body: { task: options.task } });
const last = options.messages.at(-1);
let streams = 0;
let breaks = 0;
let nothing = 0;

async function read(stream) {
  streams += 1;
  let message;
  let finished = false;
  const watched = stream.pipeThrough(
    new TransformStream({
      transform(chunk, controller) {
        finished ||= chunk.type === "finish";
        controller.enqueue(chunk);
      },
    }),
  );
  const continued = last.role === "assistant" ? structuredClone(last) : undefined;
  for await (const one of readUIMessageStream({ message: continued, stream: watched, terminateOnError: true })) message = one;
  if (!finished) throw new Error("the stream ended without its finish");
  return message;
}

async function attempt(again) {
  if (again) {
    const stream = await transport.reconnectToStream({ chatId: options.chatId });
    if (stream !== null) return await read(stream);
    nothing += 1;
    if (options.resume) return null;
  }
  const sent = { chatId: options.chatId, messages: options.messages, trigger: "submit-message" };
  return await read(await transport.sendMessages(sent));
}

let message;
for (let again = Boolean(options.resume); ; again = true) {
  try {
    message = await attempt(again);
    break;
  } catch (error) {
    breaks += 1;
    if (breaks > 300) throw error;
  }
}
console.log(JSON.stringify({ message, streams, breaks, nothing }));
