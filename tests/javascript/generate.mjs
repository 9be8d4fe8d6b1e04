// node generate.mjs FOLDER MODEL PROMPT...: greedy texts alone, then the ids of all in one batch.
import { env, pipeline } from '@huggingface/transformers';

const [folder, model, ...prompts] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = folder;
const generate = await pipeline('text-generation', model);
const settings = { max_new_tokens: 12, do_sample: false };
const texts = [];
for (const prompt of prompts) {
  const [found] = await generate(prompt, { ...settings, return_full_text: false });
  texts.push(found.generated_text);
}
generate.tokenizer.padding_side = 'left';
const inputs = generate.tokenizer(prompts, { padding: true });
const rows = await generate.model.generate({ ...inputs, ...settings });
console.log(JSON.stringify({ texts, rows: rows.tolist().map((row) => row.map(Number)) }));
