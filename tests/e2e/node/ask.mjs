// Vercel's `ai` and LangChain: each asks each of the servers and models that it is told of.
//
//   node ask.mjs '[{"url": "http://127.0.0.1:8080", "model": "gpt-alias", "session": "s"}]'
//
// Writes one JSON line for each: what the client made of the answers, and their bytes and headers.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { HumanMessage } from "@langchain/core/messages";
import { tool as langchainTool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // they go to stdout
const QUESTION = 'Tell me of rivers, 水 and "bridges".';
const PIXEL =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
const LOCK = z.object({ lock: z.string(), height_m: z.number() });

// A fetch that keeps the model header and the bytes of the last answer.
function keeping(kept) {
  return async (url, options) => {
    const answer = await fetch(url, options);
    const [mine, theirs] = answer.body.tee();
    kept.served = answer.headers.get("x-penstock-model");
    kept.bytes = new Response(mine).text();
    return new Response(theirs, { status: answer.status, headers: answer.headers });
  };
}

function vercel(model) {
  const tools = { open_lock: tool({ inputSchema: LOCK }) };
  const picture = [{ type: "image", image: PIXEL, mediaType: "image/png" }];
  const whole = async (more) => {
    const { text, toolCalls, finishReason } = await generateText({ model, maxRetries: 0, ...more });
    return { text, finishReason, calls: toolCalls.map((each) => each.input) };
  };
  const streamed = async (more) => {
    const parts = [];
    const answer = streamText({ model, maxRetries: 0, onError: (failure) => { throw failure.error; }, ...more });
    for await (const part of answer.fullStream) {
      if (part.type === "text-delta") parts.push(part.text);
      if (part.type === "tool-call") parts.push(part.input);
      if (part.type === "finish") parts.push(part.finishReason);
    }
    return parts;
  };
  return {
    whole: () => whole({ prompt: QUESTION, maxOutputTokens: 20 }),
    streamed: () => streamed({ prompt: QUESTION, maxOutputTokens: 20 }),
    tools: () => whole({ prompt: QUESTION, tools }),
    "tools, streamed": () => streamed({ prompt: QUESTION, tools }),
    image: () => whole({ messages: [{ role: "user", content: picture }], maxOutputTokens: 20 }),
  };
}

function langchain(model) {
  const picture = { type: "image_url", image_url: { url: `data:image/png;base64,${PIXEL}` } };
  const lock = langchainTool(async () => "", { name: "open_lock", schema: LOCK });
  const streamed = async (asked, prompt) => {
    const parts = [];
    for await (const part of await asked.stream(prompt)) {
      parts.push(part.content, ...(part.tool_call_chunks ?? []).map((each) => each.args));
    }
    return parts;
  };
  return {
    whole: async () => (await model.invoke(QUESTION)).content,
    streamed: () => streamed(model, QUESTION),
    tools: async () => (await model.bindTools([lock]).invoke(QUESTION)).tool_calls.map((each) => each.args),
    "tools, streamed": () => streamed(model.bindTools([lock]), QUESTION),
    image: async () => (await model.invoke([new HumanMessage({ content: [picture] })])).content,
  };
}

function clients({ url, model, session }, fetching) {
  const headers = { "x-request-id": "id-1", "x-session-id": session };
  const common = { apiKey: "k", baseURL: `${url}/v1`, fetch: fetching, headers };
  const openai = createOpenAI(common);
  return {
    "ai, chat": vercel(openai.chat(model)),
    "ai, responses": vercel(openai.responses(model)),
    "ai, messages": vercel(createAnthropic(common)(model)),
    langchain: langchain(
      new ChatOpenAI({
        model,
        apiKey: "k",
        maxRetries: 0,
        maxTokens: 20,
        configuration: { baseURL: `${url}/v1`, fetch: fetching, defaultHeaders: headers },
      }),
    ),
  };
}

for (const asked of JSON.parse(process.argv[2])) {
  const told = {};
  const kept = {};
  for (const [client, asks] of Object.entries(clients(asked, keeping(kept)))) {
    for (const [kind, ask] of Object.entries(asks)) {
      try {
        const said = await ask();
        told[`${client}: ${kind}`] = { said, served: kept.served, bytes: await kept.bytes };
      } catch (failure) {
        told[`${client}: ${kind}`] = { failed: String(failure) };
      }
    }
  }
  console.log(JSON.stringify(told));
}
