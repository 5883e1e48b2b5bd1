-- An archive of format 4, as the version before a problem had a number type wrote it.
PRAGMA application_id = 1129661490;
PRAGMA user_version = 4;
BEGIN TRANSACTION;
CREATE TABLE edits (hash TEXT PRIMARY KEY, source TEXT NOT NULL REFERENCES sources, edit TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "edits" VALUES('f28284906fe81536fae898d1ee9ad0ebdab22948458b45465776a5f975cd9f8f','d3f280cf0bb1bb3253658a511bf205a6908754808592ac0a3c3c505871be3915','{"kernel":"multiply","sha256":"abababababababababababababababababababababababababababababababab","moves":[["shift",3,4]]}');
CREATE TABLE samples (
    kind TEXT, run TEXT, step INTEGER, position INTEGER, policy TEXT NOT NULL, prompt TEXT NOT NULL, reward REAL,
    seconds REAL NOT NULL, verdict INTEGER NOT NULL REFERENCES verdicts, turn INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, run, step, position)) WITHOUT ROWID;
INSERT INTO "samples" VALUES('train','r',0,0,'p','<|cpu|>',0.5,0.0,1,0);
INSERT INTO "samples" VALUES('train','r',0,1,'p','<|cpu|>',0.5,0.0,2,0);
INSERT INTO "samples" VALUES('train','r',0,2,'p','<|cpu|>',0.5,0.0,3,0);
CREATE TABLE sources (hash TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "sources" VALUES('6cc2cb8efe9a6b2b28edfb652b1e3f72eb9bef2d0d6b70d3f65a77220b4452af','// b
int hgemm() { return 0; }
char name[] = "b";
');
INSERT INTO "sources" VALUES('8e66cde7db45a6af395aeb5ffb758ae409878b96b4bcfe3ab333f50d3fa35ac9','// c
int hgemm() { return 0; }
char name[] = "c";
');
INSERT INTO "sources" VALUES('d3f280cf0bb1bb3253658a511bf205a6908754808592ac0a3c3c505871be3915','// a
int hgemm() { return 0; }
char name[] = "a";
');
CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
    problem TEXT NOT NULL, target TEXT NOT NULL, fingerprint TEXT NOT NULL, status TEXT NOT NULL,
    speedup REAL, low REAL, body TEXT NOT NULL);
INSERT INTO "verdicts" VALUES(1,'7e00d7490a3c67e4063f1d087e007e916c2cac334e17695b597d624eef73cfa3','d3f280cf0bb1bb3253658a511bf205a6908754808592ac0a3c3c505871be3915','64_128_256_tn_f32','cpu','8b48a855acf6857e','ok',1.5,1.48499999999999987565e+00,'{"key":"4f1c8fc41a195f1921a3782aa26f9836a4a643c5864e9b7274156e2e3182e6c0","problem":{"m":64,"n":128,"k":256,"layout":"tn","accumulate":"f32"},"target":"cpu","status":"ok","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[{"baseline":"torch","protocol":"device","candidate_us":10.0,"baseline_us":15.0,"speedup":1.5,"low":1.4849999999999999,"high":1.5150000000000001,"pairs":7,"calls":10,"paired":true,"confidence":0.95},{"baseline":"torch-fp16","protocol":"device","candidate_us":10.0,"baseline_us":30.0,"speedup":3.0,"low":2.9699999999999998,"high":3.0300000000000002,"pairs":7,"calls":10,"paired":true,"confidence":0.95}],"log":"","seconds":{},"cached":false,"machine":"","counters":{}}');
INSERT INTO "verdicts" VALUES(2,'078d54df8bd1a3926a0dcb19a512dca389c3f863503e1323459ec582c0d278cf','6cc2cb8efe9a6b2b28edfb652b1e3f72eb9bef2d0d6b70d3f65a77220b4452af','64_128_256_tn_f32','cpu','8b48a855acf6857e','ok',2.0,1.98,'{"key":"6024df6ec5ab17a53a75a379fcffdecdcb140696742b85f22e926a28a5e94393","problem":{"m":64,"n":128,"k":256,"layout":"tn","accumulate":"f32"},"target":"cpu","status":"ok","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[{"baseline":"torch","protocol":"device","candidate_us":10.0,"baseline_us":20.0,"speedup":2.0,"low":1.98,"high":2.02,"pairs":7,"calls":10,"paired":true,"confidence":0.95},{"baseline":"torch-fp16","protocol":"device","candidate_us":10.0,"baseline_us":40.0,"speedup":4.0,"low":3.96,"high":4.04,"pairs":7,"calls":10,"paired":true,"confidence":0.95}],"log":"","seconds":{},"cached":false,"machine":"","counters":{}}');
INSERT INTO "verdicts" VALUES(3,'b80f21c6de086f49b27a0dc0650b38bbb13b706001a238b7ed1918f865b7da06','8e66cde7db45a6af395aeb5ffb758ae409878b96b4bcfe3ab333f50d3fa35ac9','64_64_64_nn_f16','cpu','8b48a855acf6857e','ok',1.25,1.2375,'{"key":"002e1dea99fbe9bbbe262f02641de7d2e33c266911f95996297bc16f1411abab","problem":{"m":64,"n":64,"k":64,"layout":"nn","accumulate":"f16"},"target":"cpu","status":"ok","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[{"baseline":"torch","protocol":"device","candidate_us":10.0,"baseline_us":12.5,"speedup":1.25,"low":1.2375,"high":1.2625,"pairs":7,"calls":10,"paired":true,"confidence":0.95},{"baseline":"torch-fp16","protocol":"device","candidate_us":10.0,"baseline_us":25.0,"speedup":2.5,"low":2.475,"high":2.525,"pairs":7,"calls":10,"paired":true,"confidence":0.95}],"log":"","seconds":{},"cached":false,"machine":"","counters":{}}');
INSERT INTO "verdicts" VALUES(4,'8569ad078da20ed77205995d28ffb1f2cf43faaf53ab2f49142fd54035568d9d','f28284906fe81536fae898d1ee9ad0ebdab22948458b45465776a5f975cd9f8f','64_128_256_tn_f32','cpu','8b48a855acf6857e','ok',1.75,1.7325,'{"key":"2d7b4b304e253a33cb864b0c48ef85a26107b14fb480b06b1de0dcc60d10034e","problem":{"m":64,"n":128,"k":256,"layout":"tn","accumulate":"f32"},"target":"cpu","status":"ok","environment":{"device":"a CPU","threads":2,"compiler":"g++ 12","flags":"-O3","libraries":"torch 2","harness":"1"},"reason":"","rho":null,"max_error":null,"repeatable":null,"timings":[{"baseline":"torch","protocol":"device","candidate_us":10.0,"baseline_us":17.5,"speedup":1.75,"low":1.7325,"high":1.7675,"pairs":7,"calls":10,"paired":true,"confidence":0.95},{"baseline":"torch-fp16","protocol":"device","candidate_us":10.0,"baseline_us":35.0,"speedup":3.5,"low":3.465,"high":3.535,"pairs":7,"calls":10,"paired":true,"confidence":0.95}],"log":"","seconds":{},"cached":false,"machine":"","counters":{}}');
CREATE INDEX by_problem ON verdicts (problem, target, fingerprint, source, id);
CREATE VIEW latest AS
SELECT verdicts.*, text, edit FROM verdicts LEFT JOIN edits ON edits.hash = verdicts.source
JOIN sources ON sources.hash = IFNULL(edits.source, verdicts.source) WHERE id = (
    SELECT MAX(id) FROM verdicts AS other
    WHERE other.problem = verdicts.problem AND other.target = verdicts.target
      AND other.fingerprint = verdicts.fingerprint AND other.source = verdicts.source);
COMMIT;
